use proptest::prelude::*;

use super::*;

const NAMES: [&str; 4] = ["zones", "hosts", "gpus", "lanes"];

fn names(labels: &[&str]) -> Vec<String> {
    labels.iter().map(|label| (*label).to_owned()).collect()
}

fn whole(sizes: &[usize]) -> Region {
    let extent = Extent::new(names(&NAMES[..sizes.len()]), sizes).expect("a small extent");
    Region::whole(&extent).expect("a small region")
}

fn ranks(region: &Region) -> Vec<usize> {
    region.slice().ranks().collect()
}

fn range(start: i64, stop: i64, step: i64) -> Pick {
    Pick::Range(Steps { start: Some(start), stop: Some(stop), step: Some(step) })
}

/// Python's rule for `range(size)[steps]`, written as a walk instead of arithmetic.
fn walk(steps: Steps, size: usize) -> Vec<usize> {
    let size = i64::try_from(size).expect("a small size");
    let wrap = |bound: i64| {
        if bound < 0 { (bound + size).max(0) } else { bound.min(size) }
    };
    let (mut index, stop) = (steps.start.map_or(0, wrap), steps.stop.map_or(size, wrap));
    let mut indices = Vec::new();
    while index < stop {
        indices.push(usize::try_from(index).expect("not negative"));
        index += steps.step.unwrap_or(1);
    }
    indices
}

fn small_sizes() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(1_usize..5, 0..=4)
}

fn any_steps() -> impl Strategy<Value = Steps> {
    let bound = || prop::option::of(-7_i64..8);
    (bound(), bound(), prop::option::of(1_i64..4)).prop_map(|(start, stop, step)| Steps { start, stop, step })
}

fn any_pick() -> impl Strategy<Value = Pick> {
    prop_oneof![(-1_i64..5).prop_map(Pick::At), any_steps().prop_map(Pick::Range)]
}

/// A view of a mesh that was sliced at random, where the draw selects anything.
fn any_region() -> impl Strategy<Value = Region> {
    (small_sizes(), prop::collection::vec(prop::option::of(any_pick()), 4)).prop_filter_map(
        "selects nothing",
        |(sizes, picks)| {
            let named = NAMES.iter().zip(picks).take(sizes.len());
            let picks: Vec<(String, Pick)> =
                named.filter_map(|(name, pick)| Some(((*name).to_owned(), pick?))).collect();
            whole(&sizes).pick(&picks).ok()
        },
    )
}

proptest! {
    #[test]
    fn a_range_takes_what_python_takes(steps in any_steps(), size in 0_usize..6) {
        let taken = steps.resolve(size).expect("the step is positive");
        let indices: Vec<usize> = (0..taken.count).map(|n| taken.first + n * taken.step).collect();
        prop_assert_eq!(indices, walk(steps, size));
    }

    #[test]
    fn position_undoes_get_and_at_undoes_coordinates(region in any_region()) {
        let slice = region.slice();
        for (position, rank) in slice.ranks().enumerate() {
            prop_assert_eq!(slice.position(rank), Some(position));
            let indices = slice.coordinates(rank).expect("a rank of the slice");
            let indices: Vec<i64> = indices.into_iter().map(|index| index as i64).collect();
            prop_assert_eq!(slice.at(&indices), Ok(rank));
        }
        prop_assert_eq!(slice.ranks().len(), slice.count());
    }

    #[test]
    fn ranks_outside_a_slice_have_no_position(region in any_region(), rank in 0_usize..300) {
        let held = ranks(&region).contains(&rank);
        prop_assert_eq!(region.slice().position(rank).is_some(), held);
    }

    #[test]
    fn a_pick_keeps_the_ranks_whose_index_it_takes(
        sizes in small_sizes().prop_filter("a dimension", |sizes| !sizes.is_empty()),
        steps in any_steps(),
    ) {
        let region = whole(&sizes);
        let kept = walk(steps, sizes[0]);
        let expected: Vec<usize> = ranks(&region)
            .into_iter()
            .filter(|rank| kept.contains(&region.coordinates(*rank as i64).expect("in it")[0]))
            .collect();
        match region.pick(&[("zones".to_owned(), Pick::Range(steps))]) {
            Ok(view) => prop_assert_eq!(ranks(&view), expected),
            Err(error) => {
                let empty = matches!(error, ShapeError::EmptySelection { .. });
                prop_assert!(empty && expected.is_empty());
            }
        }
    }

    #[test]
    fn flattening_and_renaming_keep_ranks_in_order(region in any_region()) {
        match region.flatten("rank") {
            Ok(flat) => prop_assert_eq!(ranks(&flat), ranks(&region)),
            Err(_) => prop_assert!(ranks(&region).windows(2).any(|pair| pair[1] != pair[0] + 1)),
        }
        let swap = [("zones", "hosts"), ("hosts", "zones")].map(|(old, new)| (old.into(), new.into()));
        if let Ok(renamed) = region.rename(&swap) {
            prop_assert_eq!(ranks(&renamed), ranks(&region));
        }
    }

    #[test]
    fn splitting_keeps_ranks_in_order(outer in 1_usize..5, inner in 1_usize..5, step in 1_i64..3) {
        let region = whole(&[2, outer * inner * 2])
            .pick(&[("hosts".to_owned(), range(0, (outer * inner * 2) as i64, step))])
            .expect("something remains");
        let size = region.slice().sizes()[1];
        let group = Group { label: "hosts".to_owned(), parts: names(&["a", "b"]) };
        let split = region.split(&[group], &[("b".to_owned(), inner)]);
        if size.is_multiple_of(inner) {
            let split = split.expect("divisible");
            prop_assert_eq!(ranks(&split), ranks(&region));
            prop_assert_eq!(split.slice().sizes(), [2, size / inner, inner]);
        } else {
            prop_assert!(matches!(split, Err(ShapeError::NotDivisible { .. })), "{:?}", split);
        }
    }

    #[test]
    fn a_cover_holds_exactly_the_given_ranks(given in prop::collection::vec(0_usize..40, 0..20)) {
        let mut expected = given.clone();
        expected.sort_unstable();
        expected.dedup();
        let covered: Vec<usize> =
            Slice::cover(given).iter().flat_map(|slice| slice.ranks().collect::<Vec<_>>()).collect();
        prop_assert_eq!(covered, expected);
    }

    #[test]
    fn any_slice_is_refused_or_safe_to_use(
        offset in any::<usize>(),
        dims in prop::collection::vec((prop_oneof![0_usize..4, any::<usize>()], any::<usize>()), 0..5),
        rank in any::<usize>(),
    ) {
        let (sizes, strides): (Vec<usize>, Vec<usize>) = dims.into_iter().unzip();
        if let Ok(slice) = Slice::new(offset, sizes, strides) {
            if let Some(position) = slice.position(rank) {
                prop_assert_eq!(slice.get(position), Some(rank));
            }
            let last = slice.count().checked_sub(1).and_then(|position| slice.get(position));
            prop_assert_eq!(last.is_some(), slice.count() > 0);
        }
    }

    #[test]
    fn an_extent_numbers_its_points_row_major(sizes in small_sizes()) {
        let extent = Extent::new(names(&NAMES[..sizes.len()]), sizes).expect("a small extent");
        for rank in 0..extent.count() {
            let point: Vec<(String, i64)> = (0..extent.sizes().len())
                .map(|dim| (NAMES[dim].to_owned(), extent.coordinate(rank, dim) as i64))
                .collect();
            prop_assert_eq!(extent.rank(&point), Ok(rank));
        }
    }
}

#[test]
fn overlapping_strides_still_find_a_rank_that_they_reach() {
    let slice = Slice::new(0, [2, 3], [3, 2]).expect("small");
    assert_eq!(slice.coordinates(4), Some(vec![0, 2]));
    assert_eq!(slice.coordinates(6), None);
}

#[test]
fn errors_list_what_exists() {
    let region = whole(&[2, 3]);
    let unknown = region.pick(&[("cpus".to_owned(), Pick::At(0))]).expect_err("no such dimension");
    assert_eq!(unknown.to_string(), "no dimension \"cpus\"; the dimensions are zones, hosts");
    let negative = region.pick(&[("hosts".to_owned(), Pick::At(-1))]).expect_err("negative");
    assert_eq!(negative.to_string(), "index -1 is out of range for dimension \"hosts\", which has size 3");
    let empty = region.pick(&[("hosts".to_owned(), range(2, 2, 1))]).expect_err("empty");
    assert_eq!(empty.to_string(), "slice 2:2:1 of dimension \"hosts\", which has size 3, selects nothing");
}

#[test]
fn a_step_that_is_not_positive_is_refused() {
    for step in [0, -1, i64::MIN] {
        let error = whole(&[4]).pick(&[("zones".to_owned(), range(0, 4, step))]).expect_err("step");
        assert!(matches!(error, ShapeError::StepNotPositive { .. }), "{error}");
    }
}

#[test]
fn sizes_beyond_a_word_are_refused() {
    let huge = vec![usize::MAX, 2];
    assert!(matches!(Slice::row_major(huge.clone()), Err(ShapeError::TooLarge { .. })));
    let labels = names(&["a", "b"]);
    assert!(matches!(Extent::new(labels, huge), Err(ShapeError::TooLarge { .. })));
    assert!(matches!(Slice::new(1, [2], [usize::MAX]), Err(ShapeError::TooLarge { .. })));
}

#[test]
fn labels_must_be_distinct_and_one_a_size() {
    let twice = Extent::new(names(&["a", "a"]), [1, 2]);
    assert!(matches!(twice, Err(ShapeError::DuplicateDimension { .. })));
    let short = Extent::new(names(&["a"]), [1, 2]);
    assert!(matches!(short, Err(ShapeError::LengthMismatch { .. })));
}

#[test]
fn a_split_needs_all_sizes_of_a_group_but_one_and_no_others() {
    let region = whole(&[8]);
    let group = |parts: &[&str]| [Group { label: "zones".to_owned(), parts: names(parts) }];
    let ambiguous = region.split(&group(&["a", "b", "c"]), &[("a".to_owned(), 2)]);
    assert!(matches!(ambiguous, Err(ShapeError::AmbiguousSplit { .. })));
    let unused = region.split(&group(&["a", "b"]), &[("a".to_owned(), 2), ("c".to_owned(), 4)]);
    assert!(matches!(unused, Err(ShapeError::UnusedSize { .. })));
    let duplicate = region.split(&group(&["a", "a"]), &[("a".to_owned(), 2)]);
    assert!(duplicate.is_err());
    let wrong = region.split(&group(&["a", "b"]), &[("a".to_owned(), 2), ("b".to_owned(), 2)]);
    assert!(matches!(wrong, Err(ShapeError::NotDivisible { .. })));
}

#[test]
fn unit_and_empty_dimensions_flatten() {
    let unit = whole(&[1, 3, 1]).pick(&[("hosts".to_owned(), range(1, 2, 1))]).expect("one rank");
    assert_eq!(ranks(&unit.flatten("rank").expect("dense")), [1]);
    let empty = whole(&[2, 0]).flatten("rank").expect("no ranks have no gaps");
    assert_eq!(empty.slice().count(), 0);
    let scalar = whole(&[]).flatten("rank").expect("one rank");
    assert_eq!(scalar.slice().sizes(), [1]);
}

#[test]
fn values_cross_threads() {
    fn crosses<T: Send + Sync + 'static>() {}
    crosses::<Region>();
    crosses::<Extent>();
    crosses::<ShapeError>();
}
