import { perProcess } from '../../core/process/per-process.ts'
import type { Services } from '../../core/process/services.ts'
import { refusedEntry } from './entries.ts'
import { addRefused, type Refused, takeRefused } from './store.ts'

const GATHER_MS = 1000
const MINUTE_MS = 60_000
const BATCH = 500

/** Names nobody has whose refused sign-ins are audited as theirs, in a minute and a process. */
const NAMES_A_MINUTE = 20

type Attempt = Omit<Refused, 'attempts' | 'since'>

/**
 * Refused sign-ins that cost their sender nothing, or that name nobody. They are gathered for a second, added up in the
 * database, and audited there as one entry a minute for each name, in any number of processes. A process that is killed
 * takes its last second with it.
 */
function openRefusedAttempts(services: Services) {
  const { clock, log } = services
  const gathered = new Map<string, Refused>()
  const strangers = { minute: 0, names: new Set<string>() }
  let timer: NodeJS.Timeout | undefined
  let wakeAt = Number.POSITIVE_INFINITY
  let writing = Promise.resolve()

  function gather(attempt: Refused): void {
    const key = `${attempt.action} ${attempt.username}`
    const { attempts = 0, since = attempt.since } = gathered.get(key) ?? {}
    gathered.set(key, { ...attempt, attempts: attempts + attempt.attempts, since })
  }

  async function write(): Promise<void> {
    const batch = [...gathered.values()]
    gathered.clear()
    try {
      const audited = await auditRefused(services, batch)
      if (audited === BATCH) wake(GATHER_MS)
      // What this minute holds back is written then.
      else if (batch.length > 0) wake(MINUTE_MS + GATHER_MS)
    } catch (error) {
      log.error({ err: error }, 'refused sign-ins not written')
      for (const attempt of batch) gather(attempt)
      wake(GATHER_MS)
    }
  }

  function wake(ms: number): void {
    const at = performance.now() + ms
    if (at >= wakeAt) return
    clearTimeout(timer)
    wakeAt = at
    timer = setTimeout(() => {
      wakeAt = Number.POSITIVE_INFINITY
      writing = writing.then(write)
    }, ms).unref()
  }

  return {
    /** Whether attempts for a name that nobody has are audited as those of this name. */
    admitsStranger(username: string): boolean {
      const minute = Math.floor(clock.now().getTime() / MINUTE_MS)
      if (strangers.minute !== minute) Object.assign(strangers, { minute, names: new Set() })
      if (strangers.names.size < NAMES_A_MINUTE) strangers.names.add(username)
      return strangers.names.has(username)
    },
    count(attempt: Attempt): void {
      gather({ ...attempt, attempts: 1, since: clock.now().toISOString() })
      wake(GATHER_MS)
    },
    async close(): Promise<void> {
      clearTimeout(timer)
      wakeAt = Number.NEGATIVE_INFINITY
      await writing
      await write()
    },
  }
}

export const refusedAttempts = perProcess(openRefusedAttempts, refused => refused.close())

/** Adds attempts up and writes entries that are due, whoever gathered them. Returns how many entries, at most BATCH. */
const auditRefused = (services: Services, attempts: Refused[]): Promise<number> =>
  services.write(async tx => {
    if (attempts.length > 0) await addRefused(tx, attempts)
    const due = await takeRefused(tx, { now: services.clock.now(), everyMs: MINUTE_MS, limit: BATCH })
    for (const refused of due) tx.audit(refusedEntry(refused))
    return due.length
  })

/** Writes what processes that were killed left to be audited. Returns how many entries. */
export async function sweepRefused(services: Services, stopping: AbortSignal): Promise<number> {
  let audited = 0
  let last = BATCH
  while (last === BATCH && !stopping.aborted) {
    last = await auditRefused(services, [])
    audited += last
  }
  return audited
}
