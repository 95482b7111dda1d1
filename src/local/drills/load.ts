import { setTimeout as sleep } from 'node:timers/promises'
import { codeOf, type Reply, request } from './api.ts'
import type { Kind, Prepared } from './kinds.ts'
import { waitUntilNone } from './wait.ts'

/** Work that a caller counts on: the ID in the answer, and when the request was first sent and answered. */
export type Acknowledged = { id: string; sentAt: number; answeredAt: number }

/** Everything that the callers of one kind of work saw. */
export type KindLedger = {
  acknowledged: Acknowledged[]
  /** Failed answers and connections, by code. The requests were repeated until they succeeded. */
  errors: Record<string, number>
  /** Requests without a success until the end of the drill. */
  unanswered: number
}

/** The work that a drill has acknowledged, by kind. */
export type Ledger = Record<string, KindLedger>

export type Load = {
  ledger: Ledger
  /** Failures of processes that got requests although no process was lost. */
  refusals: string[]
  /**
   * Waits until work of each kind has been acknowledged again, default once.
   * @throws StalledError, and the error of a caller
   */
  progress(count?: number): Promise<void>
  /**
   * Starts no more work and waits for the answers to all requests.
   * @throws the error of a caller
   */
  end(): Promise<void>
}

/** Default pause of the caller of each kind of work. */
const PAUSE_MS = 300
/** Pause before a request is repeated. */
const REPEAT_MS = 100
/** Time within which a request must have succeeded after the end of the load. */
const ANSWER_MS = 120_000

/** The answer that a repeat gets while the first request runs. */
const IN_PROGRESS = 'IDEMPOTENCY_IN_PROGRESS'

/**
 * Loads a deployment: one caller for each kind of work sends requests one after the other. A request that fails is
 * repeated with its Idempotency-Key, until it succeeds.
 * @param targets URLs of the processes that get requests, like the members of a balancer
 */
export function startLoad(
  kinds: readonly Kind[],
  prepared: Prepared,
  targets: () => string[],
  pauseMs = PAUSE_MS,
): Load {
  const ledger: Ledger = Object.fromEntries(
    kinds.map(({ name }) => [name, { acknowledged: [], errors: {}, unanswered: 0 }]),
  )
  const refusals: string[] = []
  let endsAt = Infinity
  let number = 0

  async function send(kind: string, path: string, body: object): Promise<any> {
    const headers = { 'idempotency-key': `drill-${++number}` }
    const turn = number
    for (let attempt = 0; Date.now() < endsAt + ANSWER_MS; attempt++) {
      const all = targets()
      const url = all[(turn + attempt) % all.length]
      if (url) {
        const credential = { url, token: prepared.key }
        const reply = await request(credential, 'POST', path, body, headers).catch((error: Error) => error)
        if (!(reply instanceof Error) && reply.status < 300) return reply.body
        noteFailure(kind, url, path, reply)
      }
      await sleep(REPEAT_MS)
    }
    ledger[kind].unanswered++
    throw new UnansweredError(path)
  }

  function noteFailure(kind: string, url: string, path: string, reply: Reply | Error): void {
    const code = codeOf(reply)
    const { errors } = ledger[kind]
    errors[code] = (errors[code] ?? 0) + 1
    if (code !== IN_PROGRESS && targets().includes(url)) refusals.push(`${path}: ${code}`)
  }

  const callers = kinds.map(async kind => {
    while (endsAt === Infinity) {
      const sentAt = Date.now()
      try {
        const id = await kind.start((path, body) => send(kind.name, path, body), prepared, ++number)
        ledger[kind.name].acknowledged.push({ id, sentAt, answeredAt: Date.now() })
      } catch (error) {
        if (!(error instanceof UnansweredError)) throw error
      }
      if (kind.once) return
      await sleep(pauseMs)
    }
  })
  const failed = Promise.all(callers)
  // Rejects `progress` and `end`.
  failed.catch(() => {})

  return {
    ledger,
    refusals,
    async progress(count = 1) {
      const repeated = kinds.filter(({ once }) => !once)
      const before = repeated.map(({ name }) => ledger[name].acknowledged.length)
      const missing = async () => {
        // Rejects if a caller has failed, and does not wait for the callers.
        await Promise.race([failed, null])
        return repeated.reduce(
          (sum, { name }, index) => sum + Math.max(0, before[index] + count - ledger[name].acknowledged.length),
          0,
        )
      }
      await waitUntilNone('acknowledgements', missing, { pauseMs: REPEAT_MS })
    },
    async end() {
      endsAt = Date.now()
      await failed
    },
  }
}

class UnansweredError extends Error {}
