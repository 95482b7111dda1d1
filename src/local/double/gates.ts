/** State of a gate as the control route lists it. */
export type GateState = { gate: string; open: boolean; waiting: number }

type Waiter = { n: number; lane: string; resolve: (passed: boolean) => void }
type Gate = { open: boolean; lanes: Set<string>; waiters: Waiter[] }

/** Named latches that hold requests. */
export type Gates = ReturnType<typeof createGates>

/** Creates an empty set of gates. */
export function createGates() {
  const gates = new Map<string, Gate>()

  function getOrCreate(name: string): Gate {
    let gate = gates.get(name)
    if (!gate) gates.set(name, (gate = { open: false, lanes: new Set(), waiters: [] }))
    return gate
  }

  /** Releases the waiting requests of one lane, or of all, in arrival order. */
  function release(gate: Gate, lane?: string): void {
    const waiters = gate.waiters.sort((a, b) => a.n - b.n)
    gate.waiters = lane === undefined ? [] : waiters.filter(each => each.lane !== lane)
    for (const waiter of waiters) if (lane === undefined || waiter.lane === lane) waiter.resolve(true)
  }

  function state(name: string, gate: Gate): GateState {
    return { gate: name, open: gate.open, waiting: gate.waiters.length }
  }

  return {
    /** Registers a gate for a lane; a new one is closed. */
    name(name: string, lane: string): void {
      getOrCreate(name).lanes.add(lane)
    },

    /**
     * Waits until the gate is open. Waiting requests are released in the order of `n`, their arrival number. `onGone`
     * receives the function to call when the client disconnects, which resolves to false.
     */
    wait(name: string, lane: string, n: number, onGone: (gone: () => void) => void): Promise<boolean> {
      const gate = getOrCreate(name)
      gate.lanes.add(lane)
      if (gate.open) return Promise.resolve(true)
      return new Promise(resolve => {
        const waiter = { n, lane, resolve }
        gate.waiters.push(waiter)
        onGone(() => {
          gate.waiters = gate.waiters.filter(each => each !== waiter)
          resolve(false)
        })
      })
    },

    /** Opens a gate and releases all waiting requests. */
    open(name: string): GateState {
      const gate = getOrCreate(name)
      gate.open = true
      release(gate)
      return state(name, gate)
    },

    /** Closes a gate again. */
    close(name: string): GateState {
      const gate = getOrCreate(name)
      gate.open = false
      return state(name, gate)
    },

    /** Lists all gates in the order of their creation. */
    list(): GateState[] {
      return [...gates].map(([name, gate]) => state(name, gate))
    },

    /** Releases the requests of a lane and deletes the gates that only this lane uses. */
    drop(lane: string): void {
      for (const [name, gate] of gates) {
        release(gate, lane)
        if (gate.lanes.delete(lane) && gate.lanes.size === 0) gates.delete(name)
      }
    },

    /** Releases and deletes all gates. */
    reset(): void {
      const all = [...gates.values()]
      gates.clear()
      for (const gate of all) release(gate)
    },
  }
}
