import { AsyncLocalStorage } from 'node:async_hooks'

/**
 * Bounds the slots of a project that calls to one host hold while the host does not answer. A call hangs after some time
 * without a byte. While calls to a host hang:
 * - hanging calls beyond half of the slots of the project release their slots until they end or receive a byte
 * - new calls wait without a slot, and start when fewer calls than that half are unanswered; beyond a number of them per
 *   project, whose work is all in memory, they wait with their slots
 */

/** The slot of a worker that runs work of a project. */
export type SlotHolder = {
  project: string
  /** Slots that calls to one host may hold while they hang. */
  most: number
  /** Releases the slot until the returned function is called. */
  release(): () => void
}

const holders = new AsyncLocalStorage<SlotHolder>()

/** Runs work with a slot, which calls of the work release while they hang. */
export const withSlotHolder = <T>(holder: SlotHolder, work: () => Promise<T>): Promise<T> => holders.run(holder, work)

/** Shortest time without a byte after which a call hangs. */
const MIN_HANG_MS = 1500
/** Longest one, for hosts that are known to take time for the first byte. */
const MAX_HANG_MS = 30_000
/** Factor between the usual time to the first byte and the time after which a call hangs. */
const USUAL_FACTOR = 2
/** Weight of earlier times to the first byte. */
const DECAY = 0.9

/** Calls of a project to a host in this process. */
class HostCalls {
  /** Calls that wait for a byte. */
  readonly unanswered = new Set<HostCall>()
  readonly hanging = new Set<HostCall>()
  /** Calls that wait for others to be answered; each starts as an unanswered call. */
  readonly waiting: (() => void)[] = []
  /** Recent time to the first byte. */
  #usualMs = 0

  get hangMs(): number {
    return Math.min(MAX_HANG_MS, Math.max(MIN_HANG_MS, this.#usualMs * USUAL_FACTOR))
  }

  noteFirstByte(ms: number): void {
    this.#usualMs = Math.max(ms, this.#usualMs * DECAY)
  }

  isHeld(most: number): boolean {
    return (this.hanging.size > 0 || this.waiting.length > 0) && this.unanswered.size >= most
  }

  /** Starts waiting calls as far as the host has answered. */
  startWaiting(most: number): void {
    while (this.unanswered.size < most && this.waiting.length > 0) this.waiting.shift()?.()
  }

  isIdle(): boolean {
    return this.unanswered.size === 0 && this.waiting.length === 0
  }
}

/** Most calls of a project that wait without a slot, to all hosts. */
const MAX_WAITING = 100

/** Number of calls that wait without a slot, by project. */
const waitingCalls = new Map<string, number>()

/** Runs the wait of a call without its slot, unless too many calls of the project do. */
async function withoutSlot({ project, release }: SlotHolder, wait: () => Promise<void>): Promise<void> {
  const count = waitingCalls.get(project) ?? 0
  if (count >= MAX_WAITING) return wait()
  waitingCalls.set(project, count + 1)
  const takeBack = release()
  try {
    await wait()
  } finally {
    takeBack()
    const left = (waitingCalls.get(project) as number) - 1
    if (left > 0) waitingCalls.set(project, left)
    else waitingCalls.delete(project)
  }
}

const hosts = new Map<string, HostCalls>()
/** Hosts whose usual time is remembered. */
const MAX_HOSTS = 10_000

function callsTo(key: string): HostCalls {
  let calls = hosts.get(key)
  if (!calls) {
    if (hosts.size >= MAX_HOSTS) for (const [other, idle] of hosts) if (idle.isIdle()) hosts.delete(other)
    calls = new HostCalls()
    hosts.set(key, calls)
  }
  return calls
}

/** A call by work that holds a slot. */
export class HostCall {
  readonly #calls: HostCalls
  readonly #holder: SlotHolder
  #timer: NodeJS.Timeout | undefined
  #since = 0
  #takeBack: (() => void) | null = null

  constructor(calls: HostCalls, holder: SlotHolder) {
    this.#calls = calls
    this.#holder = holder
  }

  /** From now on the call waits for a byte. */
  await(): void {
    this.#since = performance.now()
    this.#calls.unanswered.add(this)
    this.#timer = setTimeout(() => this.#hang(), this.#calls.hangMs).unref()
  }

  /** The first byte has arrived. */
  answered(): void {
    this.#calls.noteFirstByte(performance.now() - this.#since)
    this.end()
  }

  /** The call waits for nothing. */
  end(): void {
    clearTimeout(this.#timer)
    this.#takeBack?.()
    this.#takeBack = null
    this.#calls.hanging.delete(this)
    this.#calls.unanswered.delete(this)
    this.#calls.startWaiting(this.#holder.most)
  }

  get holdsSlot(): boolean {
    return this.#takeBack === null
  }

  #hang(): void {
    const { hanging } = this.#calls
    hanging.add(this)
    const holding = [...hanging].filter(({ holdsSlot }) => holdsSlot).length
    if (holding > this.#holder.most) this.#takeBack = this.#holder.release()
  }
}

/**
 * Begins a call to a host, after a wait without a slot while the host does not answer. Null outside of a slot.
 * @throws the reason of `signal` if it aborts first
 */
export async function beginHostCall(host: string, signal?: AbortSignal | null): Promise<HostCall | null> {
  const holder = holders.getStore()
  if (!holder) return null
  const calls = callsTo(`${holder.project} ${host}`)
  const call = new HostCall(calls, holder)
  if (calls.isHeld(holder.most)) await withoutSlot(holder, () => waitForStart(calls, call, signal))
  call.await()
  return call
}

const waitForStart = ({ waiting, unanswered }: HostCalls, call: HostCall, signal?: AbortSignal | null): Promise<void> =>
  new Promise((resolve, reject) => {
    signal?.throwIfAborted()
    const start = () => {
      // Now, because the next call may be started before this one continues.
      unanswered.add(call)
      signal?.removeEventListener('abort', stop)
      resolve()
    }
    const stop = () => {
      const index = waiting.indexOf(start)
      if (index >= 0) waiting.splice(index, 1)
      reject(signal?.reason)
    }
    signal?.addEventListener('abort', stop, { once: true })
    waiting.push(start)
  })
