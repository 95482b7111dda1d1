import { longestTurn, processorMs } from '../support/event-loop.ts'

/** A function that handles text or trees of callers, models, vendors or stored content on the event loop. */
export type CostCase = {
  /** Path below src and name of the function. */
  name: string
  /** Largest size that can reach the function, in the unit of the inputs. */
  limit: number
  /** The setting or constant that bounds the size, with the unit. */
  bound: string
  /** Generators of the worst inputs of size n, by name. */
  inputs: Record<string, (n: number) => unknown>
  /** A longer turn of the event loop that is accepted, in ms, and why. */
  exception?: { ms: number; because: string }
  /** Calls the function. A promise means that the function yields: its longest turn of the event loop counts. */
  run: (input: never) => unknown
}

/** Returns a case whose `run` accepts what its generators return. */
export const costCase = <Input>(
  one: Omit<CostCase, 'inputs' | 'run'> & {
    inputs: Record<string, (n: number) => Input>
    run: (input: Input) => unknown
  },
): CostCase => one

/** Longest time on the event loop without yielding, in ms of processor time of the machine of REFERENCE_MS. */
const MAX_TURN_MS = 50
/** Growth for each doubling of the size beyond 2, in the mean of the doublings: caches make steps in single ones. */
const MAX_GROWTH = 1.3
/** The same from a quarter of the size to the whole. */
const MAX_GROWTH_OF_QUARTER = (2 * MAX_GROWTH) ** 2
/** Less than these ms is mostly noise and constant cost; growth is measured from here. */
const MIN_MS = 5
/** Repetitions of a measurement that exceeds a limit. */
const MAX_REPETITIONS = 40
/** Time of the runs of which one repetition takes the mean. */
const MEAN_MS = 40
/** Multiple of the longest turn that ends the measurement, if it is exceeded in each of some repetitions. */
const HOPELESS_FACTOR = 10
const MAX_HOPELESS = 3
/** What `reference` takes on the machine for which MAX_TURN_MS holds. */
const REFERENCE_MS = 20

type Measured = { total: number; turn: number }

const TEXT = JSON.stringify(Array.from({ length: 3_000 }, (_, at) => ({ id: `item_${at}`, tags: ['a', 'b'], at })))

/** Scans text, builds objects and joins strings ten times: the work of most cases. */
function reference(): number {
  let sum = 0
  for (let round = 0; round < 10; round++) {
    for (let at = 0; at < TEXT.length; at++) if (TEXT.charCodeAt(at) === 34) sum++
    const parsed = JSON.parse(TEXT) as { id: string }[]
    sum += parsed.map(({ id }) => id.toUpperCase()).join('').length + JSON.stringify(parsed).length
  }
  return sum
}

/** Returns how many times slower than the machine of REFERENCE_MS this thread is at present, at least 1. */
async function machineFactor(): Promise<number> {
  let best = Number.POSITIVE_INFINITY
  for (let at = 0; at < 2; at++) best = Math.min(best, await processorMs(() => void reference()))
  return Math.max(1, best / REFERENCE_MS)
}

/** Runs a case once. */
async function once(run: (input: never) => unknown, input: unknown): Promise<Measured> {
  let result: unknown
  const before = process.threadCpuUsage()
  const first = await processorMs(() => {
    // Not awaited: time until the first turn ends.
    result = run(input as never)
  })
  if (!(result instanceof Promise)) return { total: first, turn: first }
  const turn = await longestTurn(() => result as Promise<unknown>)
  const { user, system } = process.threadCpuUsage(before)
  return { total: (user + system) / 1000, turn: Math.max(first, turn) }
}

const merged = (a: Measured, b: Measured): Measured => ({
  total: Math.min(a.total, b.total),
  turn: Math.min(a.turn, b.turn),
})

/** Measures a case with one generator at n, 2n and 4n = limit; returns the error. */
export async function measure(one: CostCase, input: string): Promise<string[]> {
  const maxTurnMs = one.exception?.ms ?? MAX_TURN_MS
  const build = one.inputs[input]
  const [smallest, small, quarter, half] = [32, 8, 4, 2].map(share => Math.floor(one.limit / share))
  const sizes = [quarter, half, one.limit]
  const most = HOPELESS_FACTOR * maxTurnMs
  const measured = async (n: number): Promise<Measured> => {
    let time = await once(one.run, build(n))
    for (let at = 0; at < MAX_HOPELESS && time.turn > most; at++) time = await once(one.run, build(n))
    return time
  }
  const times: Measured[] = []
  // Smaller sizes first: a function that is not linear may take hours at its limit.
  for (const n of [smallest, small, ...sizes]) {
    const time = await measured(n)
    if (time.turn > most) return [`takes ${time.turn.toFixed()} ms of the event loop at ${n} of ${one.limit}`]
    if (n >= quarter) times.push(time)
    if (n !== small || time.total > MIN_MS) continue
    // A case that is brief at the limit has not grown too much, whatever a quarter of it takes.
    const { total, turn } = await measured(one.limit)
    if (total <= MIN_MS * MAX_GROWTH_OF_QUARTER && turn <= maxTurnMs) return []
  }
  let problems = problemsOf(sizes, times, maxTurnMs)
  // Compilation, a collection of garbage or a neighbour in the processor's cache costs time of this thread too: repeated
  // until a measurement without it is found. The speed of a virtual machine may change several times a second, so each size
  // is relative to the speed just before and just after it, of which the slower counts.
  let least: Measured[] = []
  for (let at = 0; at < MAX_REPETITIONS && problems.length > 0; at++) {
    const relative: Measured[] = []
    for (const [index, n] of sizes.entries()) {
      const before = await machineFactor()
      const { total, turn } = await mean(one, build, n, times[index].total)
      const factor = Math.max(before, await machineFactor())
      relative.push({ total: total / factor, turn: turn / factor })
    }
    least = relative.map((time, index) => merged(time, least[index] ?? time))
    // The least of a small size may be of a faster moment than the least of a large one.
    const [found, alone] = [least, relative].map(each => problemsOf(sizes, each, maxTurnMs))
    problems = alone.length === 0 ? [] : found
  }
  return problems
}

/** Returns the mean of several runs: the system counts time of a thread in steps of up to 4 ms. */
async function mean(
  { run }: CostCase,
  build: (n: number) => unknown,
  n: number,
  estimateMs: number,
): Promise<Measured> {
  const count = Math.ceil(MEAN_MS / Math.max(estimateMs, 1))
  const sum: Measured = { total: 0, turn: 0 }
  for (let at = 0; at < count; at++) {
    // Each has a separate input, as functions may change theirs.
    const { total, turn } = await once(run, build(n))
    sum.total += total / count
    sum.turn += turn / count
  }
  return sum
}

function problemsOf(sizes: number[], times: Measured[], maxTurnMs: number): string[] {
  const problems: string[] = []
  const shown = times.map(({ total }, index) => `${total.toFixed(1)} ms at ${sizes[index]}`).join(', ')
  const [first, last] = [times[0], times[times.length - 1]]
  const growth = last.total / Math.max(first.total, MIN_MS)
  if (growth > MAX_GROWTH_OF_QUARTER)
    problems.push(`grows ${growth.toFixed(1)} times for an input of 4 times the size (${shown})`)
  if (last.turn > maxTurnMs)
    problems.push(`takes ${last.turn.toFixed()} ms of the event loop, at most ${maxTurnMs} ms (${shown})`)
  return problems
}
