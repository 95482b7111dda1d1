import { createHash } from 'node:crypto'
import { setTimeout as pause } from 'node:timers/promises'
import { z } from 'zod'
import type { AuditEntry } from '../../core/api/audit.ts'
import { canonicalJson } from '../../core/api/canonical.ts'
import { idFloor } from '../../core/api/ids.ts'
import { inTransaction, type Pool } from '../../core/db/pool.ts'
import { handler, schedule } from '../../core/jobs/handler.ts'
import { entityMailbox } from '../../core/jobs/queue.ts'
import type { Services } from '../../core/process/services.ts'
import { auditEntryKind } from './model.ts'
import {
  chainHeads,
  GLOBAL_CHAIN,
  insertSeals,
  lastSealingPass,
  recordPassIfSealed,
  recordSealingPass,
  type Seal,
  sealingState,
  tryLockChains,
  unsealedChains,
  unsealedEntries,
} from './store.ts'

/**
 * Tamper evidence. Behind the entries of a project, and behind those without one, a worker writes a hash chain:
 * `hash = sha256(previous hash + canonical entry)`, so that writes of a project do not queue on it. A chain shows that a
 * sealed entry was changed or deleted. It does not show what happened to an entry in the seconds before it was sealed,
 * nor a chain that was computed anew as a whole: compare the last hash with a copy kept elsewhere for that. Seals outlive
 * entries that retention deleted.
 */

/** Wakes the sealing worker; one message at a time in the whole deployment. */
const sealQueue = entityMailbox('audit.seal', {
  message: z.object({ full: z.boolean() }),
  key: message => (message.full ? 'full' : 'tick'),
  concern: 'snapshot',
})

const PAGE = 500
const BUSY_MS = 50

/** An entry can be committed so much later than its id says; a full pass finds what is later still. */
const LATE_MS = 120_000

/** An entry as text that depends on its values only, whatever the order of the keys in its detail. */
export const canonicalEntry = (entry: AuditEntry): string => canonicalJson(auditEntryKind.present(entry))

/** The hash of an entry behind the one of its predecessor. */
export const entryHash = (previous: Buffer, entry: AuditEntry): Buffer =>
  createHash('sha256').update(previous).update(canonicalEntry(entry)).digest()

const chainName = (entry: AuditEntry): string => entry.project_id ?? GLOBAL_CHAIN

type Scope = { chain?: string; floor: string | null }

/**
 * Seals up to a page of entries under the locks of their chains. Returns how many, and the last one's id. Does
 * not wait with a connection in hand: `busy` while another process seals one of the chains.
 */
async function sealPage(pool: Pool, scope: Scope): Promise<{ count: number; last: string | null; busy?: true }> {
  const chains = scope.chain ? [scope.chain] : await unsealedChains(pool, scope.floor, PAGE)
  if (chains.length === 0) return { count: 0, last: null }
  return inTransaction(pool, async db => {
    if (!(await tryLockChains(db, chains))) return { count: 0, last: null, busy: true }
    // Read under the locks: entries that another process sealed meanwhile have their seals now.
    const entries = await unsealedEntries(db, chains, scope, PAGE)
    if (entries.length === 0) return { count: 0, last: null }
    const heads = new Map((await chainHeads(db, chains)).map(head => [head.chain, head]))
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
  inTurn: <T>(work: () => Promise<T>) => Promise<T> = work => work(),
): Promise<number> {
  const begin = idFloor(auditEntryKind.prefix, new Date())
  let sealed = 0
  let { floor } = scope
  while (!stopping?.aborted) {
    // Each page begins where the last ended: what is sealed already is not read again.
    const { count, last, busy } = await inTurn(() => sealPage(pool, { ...scope, floor }))
    if (busy) {
      await pause(BUSY_MS)
      continue
    }
    if (last === null) break
    sealed += count
    floor = last
    // Entries that came since the start are left to the next pass, or a busy deployment would never finish one.
    if (last >= begin) break
  }
  return sealed
}

/** Entries with smaller ids were sealed by the last pass over all chains; null before the first. */
const floorOf = (lastPass: string | null): string | null =>
  lastPass ? idFloor(auditEntryKind.prefix, new Date(new Date(lastPass).getTime() - LATE_MS)) : null

const passFloor = async (pool: Pool): Promise<string | null> => floorOf(await lastSealingPass(pool))

/**
 * Whether entries wait for a seal. Where none does, asking was a pass: a deployment in which nothing happens sends no
 * messages for it, and reads nothing but the newest id once that is older than LATE_MS.
 */
async function isPassDue({ pool }: Services): Promise<boolean> {
  const began = new Date()
  const { passed_at, newest } = await sealingState(pool)
  const floor = floorOf(passed_at)
  if (newest === null || (floor !== null && newest < floor)) return false
  return !(await recordPassIfSealed(pool, floor, began))
}

/**
 * Seals every entry that is due: those since the last pass, with a margin for late commits, or with `full` whatever has
 * no seal. Safe to run at the same time as others. Returns how many were sealed.
 */
export async function sealEntries(pool: Pool, options: { full: boolean; stopping?: AbortSignal }): Promise<number> {
  const began = new Date()
  const floor = options.full ? null : await passFloor(pool)
  const sealed = await sealPages(pool, { floor }, options.stopping)
  if (!options.stopping?.aborted) await recordSealingPass(pool, began)
  return sealed
}

/** Seals the entries of a chain since the last pass. `inTurn` runs each statement and each page. */
export async function sealChain(
  pool: Pool,
  chain: string,
  stopping: AbortSignal,
  inTurn: <T>(work: () => Promise<T>) => Promise<T>,
): Promise<void> {
  const floor = await inTurn(() => passFloor(pool))
  await sealPages(pool, { chain, floor }, stopping, inTurn)
}

const SEAL_SECONDS = 5

export const sealHandler = handler(sealQueue, { concurrency: 1 }, ({ full }, { services, stopping }) =>
  sealEntries(services.pool, { full, stopping }),
)

export const sealSchedules = [
  schedule('seal audit entries', SEAL_SECONDS, sealQueue, { full: false }, isPassDue),
  schedule('seal late audit entries', '37 3 * * *', sealQueue, { full: true }),
]
