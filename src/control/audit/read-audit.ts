import { Counter } from 'prom-client'
import type { AuditEntry } from '../../core/api/audit.ts'
import { NotifiedCache } from '../../core/db/notified-cache.ts'
import { isProjectDeleted } from '../../core/db/sql.ts'
import { withTriggerChain } from '../../core/db/trigger-chain.ts'
import type { ReadAudit } from '../../core/invoke/hooks.ts'
import { processSingleton } from '../../core/process/process-singleton.ts'
import type { Services } from '../../core/process/services.ts'
import { WriteBehind } from '../../core/process/write-behind.ts'
import { readAuditFlags } from './store.ts'

/** A trigger on projects notifies it with the id of a project whose audit_reads_enabled has changed. */
const CHANNEL = 'muster_audit_reads'
const MAX_AGE_MS = 30_000

/** Nobody waits for the entry of a read, so reads of a tenth of a second share a transaction. */
const GATHER_MS = 100
const BATCH = 500
const RETRY_MS = 1000

export const auditReadsDropped = new Counter({
  name: 'muster_audit_reads_dropped_total',
  help: 'Audit entries of reads dropped: the buffer was full, or the database refused them',
  registers: [],
})

/**
 * The audit of reads: which projects want it, known for at most 30 s, and a buffer of at most
 * AUDIT_QUEUE_MAX_SIZE entries in front of the database. What does not fit is dropped and counted. `close` writes what
 * is buffered.
 */
export function openReadAudit(services: Services): ReadAudit & { close(): Promise<void> } {
  const { config, log, notifications, pool } = services
  const switches = new NotifiedCache<{ on: boolean }>(notifications, {
    channel: CHANNEL,
    maxAgeMs: MAX_AGE_MS,
    load: async projectIds => {
      const rows = await readAuditFlags(pool, projectIds)
      const on = new Set(rows.filter(row => row.audit_reads_enabled).map(({ id }) => id))
      return projectIds.map(id => ({ on: on.has(id) }))
    },
  })
  const write = (entries: AuditEntry[], chainOf: (place: number) => readonly string[]) =>
    services.write(async tx => {
      for (const [place, entry] of entries.entries()) withTriggerChain(chainOf(place), () => tx.audit(entry))
    })
  const buffer = new WriteBehind<AuditEntry>({
    what: 'audit entries of reads',
    log,
    most: config.AUDIT_QUEUE_MAX_SIZE,
    gatherMs: GATHER_MS,
    batch: BATCH,
    retryMs: RETRY_MS,
    write: (entries, chainOf) =>
      write(entries, chainOf).catch(async error => {
        if (!isProjectDeleted(error)) throw error
        // Events cannot be written for a project that is gone; its entries can, as those of the deployment.
        const present = new Set((await readAuditFlags(pool, entries.map(projectOf))).map(({ id }) => id))
        await write(
          entries.map(entry => (present.has(projectOf(entry)) ? entry : { ...entry, project_id: null })),
          chainOf,
        )
      }),
    dropped: count => auditReadsDropped.inc(count),
  })

  return {
    enabledFor(projectId) {
      const known = switches.get(projectId)
      return known instanceof Promise ? known.then(({ on }) => on) : known.on
    },
    record: entry => buffer.add(entry),
    async close() {
      switches.close()
      await buffer.close()
    },
  }
}

/** The audit of reads of this process. */
export const readAuditOf = processSingleton(openReadAudit, reads => reads.close())

const projectOf = (entry: AuditEntry): string => entry.project_id ?? ''
