import time, sys
t0=time.perf_counter()
from roost.actor import *
print('import',time.perf_counter()-t0)
class A(Actor):
    def __init__(self, x): self.x=x; print('hello from init', x)
    @endpoint
    def add(self, y): return self.x+y
    @endpoint
    def rank(self): return dict(current_rank().items())
    @endpoint
    def boom(self, k): raise ValueError(f"boom {k}")
if __name__=='__main__':
    t=time.perf_counter()
    h=this_host(); print('host',time.perf_counter()-t)
    p=h.spawn_procs({"gpus":4}); a=p.spawn("a",A,10)
    print(a.add.call(5).get().values(), time.perf_counter()-t)
    t=time.perf_counter()
    p2=h.spawn_procs({"gpus":4}); a2=p2.spawn("a2",A,10)
    print(a2.add.call(5).get().values(), 'warm spawn 4', time.perf_counter()-t)
    t=time.perf_counter()
    p3=h.spawn_procs({"gpus":32}); a3=p3.spawn("a2",A,10)
    a3.add.call(5).get(); print('warm spawn 32', time.perf_counter()-t)
    print(a.rank.call().get())
    one=a.slice(gpus=2)
    print(one.rank.call_one().get(), one.add.call_one(1).get())
    try: one.boom.call_one(3).get()
    except ValueError as e: print('caught', e)
    try: a.boom.call(3).get()
    except* ValueError as e: print('caught', e.exceptions)
    ts=[]
    for _ in range(3000):
        s=time.perf_counter(); one.add.call_one(1).get(); ts.append(time.perf_counter()-s)
    ts.sort(); print('call_one p50 us', ts[1500]*1e6, 'p99', ts[2970]*1e6)
    s=time.perf_counter(); fs=[one.add.call_one(1) for _ in range(20000)]; [f.get() for f in fs]; print('pipelined', 20000/(time.perf_counter()-s))
    s=time.perf_counter()
    for _ in range(20000): one.add.broadcast(1)
    one.add.call_one(1).get(); print('broadcast1', 20000/(time.perf_counter()-s))
    for n,m in ((4,a),(32,a3)):
        ts=[]
        for _ in range(200):
            s=time.perf_counter(); m.add.call(1).get(); ts.append(time.perf_counter()-s)
        ts.sort(); print('mesh',n,'p50 ms', ts[100]*1e3)
        s=time.perf_counter(); k=1000; fs=[m.add.call(1) for _ in range(k)]; [f.get() for f in fs]; print('mesh pipelined',n, k/(time.perf_counter()-s))
