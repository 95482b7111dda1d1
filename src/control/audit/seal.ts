import { createHash } from 'node:crypto'
import { setTimeout as pause } from 'node:timers/promises'
import { z } from 'zod'
import { canonicalJson } from '#core/base/canonical.ts'
import { systemClock } from '#core/base/clock.ts'
import { idFloor } from '#core/base/ids.ts'
import type { Services } from '#core/base/services.ts'
import { inTransaction, type Pool } from '#core/db/pool.ts'
import { entityMailbox } from '#core/queues/queue.ts'
import { handler, schedule } from '#core/work/handler.ts'
import { deleteInBatches } from '#core/work/sweeps.ts'
import type { AuditEntry } from '#core/writes/audit-entry.ts'
import { auditEntryKind } from './model.ts'
import {
  GLOBAL_CHAIN,
  insertSeals,
  lastSealingPass,
  listChainHeads,
  listUnsealedChains,
  listUnsealedEntries,
  mergeSealBatches,
  readSealingState,
  recordPassIfSealed,
  recordSealingPass,
  type Seal,
  tryLockChains,
} from './store.ts'

/**
 * Tamper evidence. A worker writes one hash chain per project and one for entries without a project, where
 * `hash = sha256(previous hash + canonical entry)`. Sealing after the fact keeps writers from contending for the chain.
 * A chain proves that a sealed entry was changed or deleted. It detects neither a change in the seconds before sealing
 * nor a chain recomputed as a whole: for the latter, compare the last hash with an external copy. Retention deletes the seals
 * at the beginning of a chain whose entries it deleted, and keeps the hash of the last one.
 */

/** Wake-ups of sealing; one message at a time in the whole deployment. */
const sealQueue = entityMailbox('audit.seal', {
  message: z.object({ full: z.boolean() }),
  key: message => (message.full ? 'full' : 'tick'),
  concern: 'snapshot',
})

const PAGE = 500
const BUSY_MS = 50

/** Longest delay from the time in an entry id to its commit; a full pass finds later entries. */
const MAX_COMMIT_DELAY_MS = 120_000

/** Returns an entry as text that does not depend on the order of keys in its detail. */
const canonicalEntry = (entry: AuditEntry): string => canonicalJson(auditEntryKind.present(entry))

/** Returns the chained hash of an entry. */
export const entryHash = (previous: Buffer, entry: AuditEntry): Buffer =>
  createHash('sha256').update(previous).update(canonicalEntry(entry)).digest()

const chainName = (entry: AuditEntry): string => entry.project_id ?? GLOBAL_CHAIN

type Scope = { chain?: string; floor: string | null }

/**
 * Seals up to a page of entries under the locks of their chains. Returns their number and the last id, or `busy` while
 * another process seals one of the chains: waiting for it would occupy a connection.
 */
async function sealPage(pool: Pool, scope: Scope): Promise<{ count: number; last: string | null; busy?: true }> {
  const chains = scope.chain ? [scope.chain] : await listUnsealedChains(pool, scope.floor, PAGE)
  if (chains.length === 0) return { count: 0, last: null }
  return inTransaction(pool, async db => {
    if (!(await tryLockChains(db, chains))) return { count: 0, last: null, busy: true }
    // Read under the locks, so that entries sealed by another process are excluded.
    const entries = await listUnsealedEntries(db, chains, scope, PAGE)
    if (entries.length === 0) return { count: 0, last: null }
    const heads = new Map((await listChainHeads(db, chains)).map(head => [head.chain, head]))
    const seals = entries.map((entry): Seal => {
      const chain = chainName(entry)
      const head = heads.get(chain) ?? { position: 0, hash: Buffer.alloc(0) }
      const seal = { chain, entry_id: entry.id, position: head.position + 1, hash: entryHash(head.hash, entry) }
      heads.set(chain, seal)
      return seal
    })
    await insertSeals(db, seals)
    return { count: entries.length, last: entries[entries.length - 1].id }
  })
}

async function sealPages(
  pool: Pool,
  scope: Scope,
  stopping?: AbortSignal,
  serialize: <T>(work: () => Promise<T>) => Promise<T> = work => work(),
): Promise<number> {
  const startId = idFloor(auditEntryKind.prefix, systemClock.now())
  let sealed = 0
  let { floor } = scope
  while (!stopping?.aborted) {
    // Each page starts after the previous one, so that sealed entries are not read again.
    const { count, last, busy } = await serialize(() => sealPage(pool, { ...scope, floor }))
    if (busy) {
      await pause(BUSY_MS)
      continue
    }
    if (last === null) break
    sealed += count
    floor = last
    // The next pass seals entries written since the start; otherwise a busy deployment would never finish a pass.
    if (last >= startId) break
  }
  return sealed
}

/** Returns the id below which the last pass sealed all entries; null before the first pass. */
const sealedFloor = (lastPass: string | null): string | null =>
  lastPass ? idFloor(auditEntryKind.prefix, new Date(new Date(lastPass).getTime() - MAX_COMMIT_DELAY_MS)) : null

const readSealedFloor = async (pool: Pool): Promise<string | null> => sealedFloor(await lastSealingPass(pool))

/**
 * Whether entries need a seal. If not, the check is recorded as a pass, so an idle deployment sends no messages and
 * reads only the newest id once that is older than MAX_COMMIT_DELAY_MS.
 */
async function isPassDue({ pool }: Services): Promise<boolean> {
  const began = systemClock.now()
  const { passed_at, newest } = await readSealingState(pool)
  const floor = sealedFloor(passed_at)
  if (newest === null || (floor !== null && newest < floor)) return false
  return !(await recordPassIfSealed(pool, floor, began))
}

/**
 * Seals entries since the last pass, with a margin for late commits, or with `full` all unsealed entries. Concurrent
 * runs are safe. Returns the number of sealed entries.
 */
export async function sealEntries(pool: Pool, options: { full: boolean; stopping?: AbortSignal }): Promise<number> {
  const began = systemClock.now()
  const floor = options.full ? null : await readSealedFloor(pool)
  const sealed = await sealPages(pool, { floor }, options.stopping)
  if (!options.stopping?.aborted) await recordSealingPass(pool, began)
  return sealed
}

/** Seals the entries of a chain since the last pass. `serialize` wraps each statement and each page. */
export async function sealChain(
  pool: Pool,
  chain: string,
  stopping: AbortSignal,
  serialize: <T>(work: () => Promise<T>) => Promise<T>,
): Promise<void> {
  const floor = await serialize(() => readSealedFloor(pool))
  await sealPages(pool, { chain, floor }, stopping, serialize)
}

/** Age of entries whose seals are merged; above the delay of commits and of a full pass. */
const MERGE_AFTER_MS = 2 * 86_400_000
/** Ranges of positions per transaction. */
const MERGE_BATCH = 100

/**
 * Merges the batches of quiet chains, which have few entries per pass. Positions and hashes remain. Returns the number
 * of merged ranges.
 */
export const mergeSeals = (
  { clock, pool }: Pick<Services, 'clock' | 'pool'>,
  stopping?: AbortSignal,
): Promise<number> => {
  const before = idFloor(auditEntryKind.prefix, new Date(clock.now().getTime() - MERGE_AFTER_MS))
  return deleteInBatches(limit => inTransaction(pool, tx => mergeSealBatches(tx, before, limit)), stopping, MERGE_BATCH)
}

const SEAL_SECONDS = 5

export const sealHandler = handler(sealQueue, { concurrency: 1 }, ({ full }, { services, stopping }) =>
  sealEntries(services.pool, { full, stopping }),
)

export const sealSchedules = [
  schedule('seal audit entries', SEAL_SECONDS, sealQueue, { full: false }, isPassDue),
  schedule('seal late audit entries', '37 3 * * *', sealQueue, { full: true }),
]
