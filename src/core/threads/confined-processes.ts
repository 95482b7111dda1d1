import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { realpathSync } from 'node:fs'
import path from 'node:path'
import type { Writable } from 'node:stream'
import { fileURLToPath } from 'node:url'

/** A program that reads content of callers by `answerRequests` of confined-program.ts. */
type ConfinedProgram = {
  /** It may read the files of its directory, and start its monitor thread. */
  file: URL
  args: readonly string[]
  /** Real paths of other files that it may read; a directory ends with a slash. */
  reads: readonly string[]
  /** Memory of a process, including program and content. */
  memoryBytes: number
  heapMebibytes: number
  /** Further options of Node. */
  options?: readonly string[]
}

export type ConfinedRequest<Request> = { size: number; request: Request }
export type ConfinedAnswer<Part, Answer> = { part: Part } | { end: Answer; isReusable: boolean }

/** Size and bytes of a file. */
export type Content = { size: number; pieces: AsyncIterable<Uint8Array> | Iterable<Uint8Array> }

/**
 * How a request ended; `exit`: code or signal of a process that ended for another reason. `unusable`: it cannot be started, or
 * takes no messages.
 */
export type ConfinedOutcome<Part, Answer> =
  | { kind: 'answered'; answer: Answer; parts: Part[] }
  | { kind: 'timeout' | 'memory' }
  | { kind: 'exited'; exit: number | string | null }
  | { kind: 'unusable'; reason: string }

/**
 * `timeoutMs`: limit for the answer once the process has all of the content, and for each time that it accepts none of it.
 */
type Limits = { timeoutMs: number; signal?: AbortSignal }

/** How long an idle process waits for the next request. */
const IDLE_MS = 30_000

const realPath = (file: string): string => realpathSync(fileURLToPath(new URL(file, import.meta.url)))

/** Options of Node for a program: it reads its code and `reads`, no other file such as environments of processes. */
export const rightsOf = ({ file, reads, heapMebibytes, options = [] }: ConfinedProgram): string[] => [
  `--max-old-space-size=${heapMebibytes}`,
  ...options,
  '--permission',
  ...[`${path.dirname(realpathSync(file))}/`, realPath('./'), ...reads].map(each => `--allow-fs-read=${each}`),
  '--allow-worker',
]

/**
 * Processes of a program for content of callers: with an empty environment, one request at a time, killed above the limits of
 * time and memory. An idle process is used again for a while. They do not keep this process running.
 */
export class ConfinedProcesses<Request, Part, Answer> {
  readonly #program: ConfinedProgram
  /** Idle processes with their ends; never more than the requests that were active at the same time. */
  readonly #idle = new Map<ChildProcess, NodeJS.Timeout>()
  readonly #active = new Set<ChildProcess>()
  #isClosed = false

  constructor(program: ConfinedProgram) {
    this.#program = program
  }

  /**
   * Sends a request with its content, and returns its answer. If a process ends that had served others, the request is
   * repeated in a new one: their content may have left too little memory.
   * @param open returns the content; called again for another process
   * @throws the reason of the signal, errors of `open` and the pieces, Error if they are not of the size
   */
  async run(
    request: Request,
    open: () => Promise<Content> | Content,
    limits: Limits,
  ): Promise<ConfinedOutcome<Part, Answer>> {
    const content = await open()
    limits.signal?.throwIfAborted()
    const idle = this.#takeIdle()
    const outcome = await this.#runIn(idle ?? this.#start(), request, content, limits)
    const isDone = outcome.kind === 'answered' || outcome.kind === 'timeout'
    if (!idle || isDone || this.#isClosed) return outcome
    const again = await open()
    limits.signal?.throwIfAborted()
    return this.#runIn(this.#start(), request, again, limits)
  }

  async #runIn(
    child: ChildProcess,
    request: Request,
    content: Content,
    { timeoutMs, signal }: Limits,
  ): Promise<ConfinedOutcome<Part, Answer>> {
    this.#active.add(child)
    const ended = new AbortController()
    const parts: Part[] = []
    let isReusable = false
    let isSent = false
    try {
      return await new Promise<ConfinedOutcome<Part, Answer>>((resolve, reject) => {
        const on = (name: string, listener: (...values: any[]) => void) => {
          child.on(name, listener)
          ended.signal.addEventListener('abort', () => child.off(name, listener))
        }
        on('message', (message: ConfinedAnswer<Part, Answer>) => {
          if ('part' in message) return parts.push(message.part)
          isReusable = message.isReusable
          resolve({ kind: 'answered', answer: message.end, parts })
        })
        // V8 exits with SIGABRT when its heap is full; the monitor sends SIGUSR2.
        on('exit', (code: number | null, by: NodeJS.Signals | null) =>
          resolve(by === 'SIGUSR2' || by === 'SIGABRT' ? { kind: 'memory' } : { kind: 'exited', exit: by ?? code }),
        )
        on('error', (error: Error) => resolve({ kind: 'unusable', reason: error.message }))
        signal?.addEventListener('abort', () => reject(signal.reason), { signal: ended.signal })
        // A process that could not be forked has no channel, and emits its error later.
        child.send?.({ size: content.size, request } satisfies ConfinedRequest<Request>)
        sendContent(content, child.stdin as Writable, timeoutMs, ended.signal).then(isAccepted => {
          isSent = isAccepted
          if (ended.signal.aborted) return
          if (!isAccepted) return resolve({ kind: 'timeout' })
          const timer = setTimeout(() => resolve({ kind: 'timeout' }), timeoutMs)
          ended.signal.addEventListener('abort', () => clearTimeout(timer))
        }, reject)
      })
    } finally {
      ended.abort()
      this.#active.delete(child)
      // A remainder of the content would be read as the start of the next one.
      if (isReusable && isSent && !this.#isClosed) this.#keep(child)
      else child.kill('SIGKILL')
    }
  }

  /** Kills all processes; active requests end as `exited`. */
  close(): void {
    this.#isClosed = true
    for (const child of [...this.#idle.keys(), ...this.#active]) {
      this.#forget(child)
      child.kill('SIGKILL')
    }
  }

  #takeIdle(): ChildProcess | undefined {
    const idle = [...this.#idle.keys()].at(-1)
    if (idle) this.#forget(idle)
    return idle
  }

  #start(): ChildProcess {
    const child = start(this.#program)
    const forget = () => this.#forget(child)
    child.once('disconnect', forget).once('exit', forget)
    return child
  }

  #keep(child: ChildProcess): void {
    this.#idle.set(child, setTimeout(() => child.disconnect(), IDLE_MS).unref())
  }

  #forget(child: ChildProcess): void {
    clearTimeout(this.#idle.get(child))
    this.#idle.delete(child)
  }
}

function start(program: ConfinedProgram): ChildProcess {
  const child = fork(program.file, [String(program.memoryBytes), ...program.args], {
    env: {},
    execArgv: rightsOf(program),
    stdio: ['pipe', 'ignore', 'ignore', 'ipc'],
    serialization: 'advanced',
  })
  // Errors of an active process are handled by its exit; an idle process is replaced.
  child.on('error', () => {})
  child.stdin?.on('error', () => {})
  child.unref()
  child.channel?.unref()
  return child
}

/**
 * Writes a content with backpressure until its end or until `signal` aborts. False if the process accepts none of it for
 * `timeoutMs`.
 * @throws errors of the pieces, Error if they are not of the size
 */
async function sendContent(
  { size, pieces }: Content,
  target: Writable,
  timeoutMs: number,
  signal: AbortSignal,
): Promise<boolean> {
  let left = size
  for await (const piece of pieces) {
    if (signal.aborted) return false
    left -= piece.length
    if (left < 0) break
    if (target.write(piece) || left === 0) continue
    const limit = AbortSignal.timeout(timeoutMs)
    // The pipe of a process that ended fails; its exit aborts `signal`.
    await once(target, 'drain', { signal: AbortSignal.any([signal, limit]) }).catch(() => {})
    if (limit.aborted) return false
  }
  if (left !== 0) throw new Error(`the content has ${left > 0 ? 'fewer' : 'more'} than ${size} bytes`)
  return true
}
