import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { failedSignInEntry } from './sign-in-audit.ts'
import { addFailedSignIns, claimFailedSignIns, type FailedSignIns } from './store.ts'

const COLLECT_MS = 1000
const MINUTE_MS = 60_000
const BATCH = 500

/** Number of unknown names audited by name, per minute and process. */
const NAMES_A_MINUTE = 20

type Attempt = Omit<FailedSignIns, 'attempts' | 'since'>

/**
 * Collects refused sign-ins of locked or unknown names for a second and adds them up in the database, where each name
 * gets one audit entry a minute across all processes. A killed process loses its last second.
 */
function openFailedSignInBuffer(services: Services) {
  const { clock, log } = services
  const collected = new Map<string, FailedSignIns>()
  const unknown = { minute: 0, names: new Set<string>() }
  let timer: NodeJS.Timeout | undefined
  let wakeAt = Number.POSITIVE_INFINITY
  let writing = Promise.resolve()

  function collect(attempt: FailedSignIns): void {
    const key = `${attempt.action} ${attempt.username}`
    const { attempts = 0, since = attempt.since } = collected.get(key) ?? {}
    collected.set(key, { ...attempt, attempts: attempts + attempt.attempts, since })
  }

  async function write(): Promise<void> {
    const batch = [...collected.values()]
    collected.clear()
    try {
      const audited = await auditFailedSignIns(services, batch)
      if (audited === BATCH) scheduleWrite(COLLECT_MS)
      // Attempts for names that had an entry in this minute are due in the next.
      else if (batch.length > 0) scheduleWrite(MINUTE_MS + COLLECT_MS)
    } catch (error) {
      log.error({ err: error }, 'failed sign-in write failed')
      for (const attempt of batch) collect(attempt)
      scheduleWrite(COLLECT_MS)
    }
  }

  function scheduleWrite(ms: number): void {
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
    /** Whether attempts for an unknown name are audited under this name. */
    auditsByName(username: string): boolean {
      const minute = Math.floor(clock.now().getTime() / MINUTE_MS)
      if (unknown.minute !== minute) Object.assign(unknown, { minute, names: new Set() })
      if (unknown.names.size < NAMES_A_MINUTE) unknown.names.add(username)
      return unknown.names.has(username)
    },
    count(attempt: Attempt): void {
      collect({ ...attempt, attempts: 1, since: clock.now().toISOString() })
      scheduleWrite(COLLECT_MS)
    },
    async close(): Promise<void> {
      clearTimeout(timer)
      wakeAt = Number.NEGATIVE_INFINITY
      await writing
      await write()
    },
  }
}

export const failedSignInBuffer = processSingleton(openFailedSignInBuffer, refused => refused.close())

/**
 * Adds up attempts and writes due entries, including entries of other processes. Returns the number of entries, at most
 * BATCH.
 */
const auditFailedSignIns = (services: Services, attempts: FailedSignIns[]): Promise<number> =>
  services.write(async tx => {
    if (attempts.length > 0) await addFailedSignIns(tx, attempts)
    const due = await claimFailedSignIns(tx, { now: services.clock.now(), everyMs: MINUTE_MS, limit: BATCH })
    for (const refused of due) tx.audit(failedSignInEntry(refused))
    return due.length
  })

/** Writes due entries of killed processes and returns their number. */
export async function flushFailedSignIns(services: Services, stopping: AbortSignal): Promise<number> {
  let audited = 0
  let last = BATCH
  while (last === BATCH && !stopping.aborted) {
    last = await auditFailedSignIns(services, [])
    audited += last
  }
  return audited
}
