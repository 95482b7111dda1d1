import { Counter } from 'prom-client'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { NotifiedCache } from '#core/db/notified-cache.ts'
import { isProjectDeleted } from '#core/db/sql.ts'
import { withTriggerChain } from '#core/db/trigger-chain.ts'
import { WriteBehind } from '#core/db/write-behind.ts'
import type { ReadAudit } from '#core/invoke/hooks.ts'
import type { AuditEntry } from '#core/writes/audit-entry.ts'
import { readAuditFlags } from './store.ts'

/** A trigger on projects sends the id of a project whose audit_reads_enabled changed. */
const CHANNEL = 'muster_audit_reads'
const MAX_AGE_MS = 30_000

/** No caller waits for the entry of a read, so reads within 100 ms share a transaction. */
const GATHER_MS = 100
const BATCH = 500
const RETRY_MS = 1000

export const auditReadsDropped = new Counter({
  name: 'muster_audit_reads_dropped_total',
  help: 'Audit entries of reads dropped because the buffer was full or the database rejected them',
  registers: [],
})

/**
 * Opens the audit of reads: a cache of the project flags for at most 30 s, and a buffer of at most AUDIT_QUEUE_MAX_SIZE
 * entries. Entries beyond that are dropped and counted. `close` writes the buffered entries.
 */
export function openReadAudit(services: Services): ReadAudit & { close(): Promise<void> } {
  const { config, log, notifications, pool } = services
  const flags = new NotifiedCache<{ on: boolean }>(notifications, {
    channel: CHANNEL,
    maxAgeMs: MAX_AGE_MS,
    load: async projectIds => {
      const rows = await readAuditFlags(pool, projectIds)
      const enabled = new Set(rows.filter(row => row.audit_reads_enabled).map(({ id }) => id))
      return projectIds.map(id => ({ on: enabled.has(id) }))
    },
  })
  const write = (entries: AuditEntry[], chainOf: (index: number) => readonly string[]) =>
    services.write(async tx => {
      for (const [index, entry] of entries.entries()) withTriggerChain(chainOf(index), () => tx.audit(entry))
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
        // Events of a deleted project cannot be written; its audit entries are written without a project.
        const existing = new Set((await readAuditFlags(pool, entries.map(projectOf))).map(({ id }) => id))
        await write(
          entries.map(entry => (existing.has(projectOf(entry)) ? entry : { ...entry, project_id: null })),
          chainOf,
        )
      }),
    dropped: count => auditReadsDropped.inc(count),
  })

  return {
    enabledFor(projectId) {
      const cached = flags.get(projectId)
      return cached instanceof Promise ? cached.then(({ on }) => on) : cached.on
    },
    record: entry => buffer.add(entry),
    async close() {
      flags.close()
      await buffer.close()
    },
  }
}

export const readAuditOf = processSingleton(openReadAudit, reads => reads.close())

const projectOf = (entry: AuditEntry): string => entry.project_id ?? ''
