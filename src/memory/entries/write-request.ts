import { checkStorage } from '../../control/quotas/storage.ts'
import { raise, raiseInvalid } from '../../core/api/errors.ts'
import { isIdOf, kinds } from '../../core/api/kind.ts'
import type { Context } from '../../core/api/operation.ts'
import { requireAll } from '../../core/api/references.ts'
import type { Queryable } from '../../core/db/sql.ts'
import { memoryBound, reachOf } from '../../core/iam/authority.ts'
import type { Caller } from '../../core/iam/caller.ts'
import { type MemoryRow, memoryKind, requireFuture, storePolicyTarget } from '../memories/model.ts'
import { canReachMemory } from '../reach.ts'
import type { MemoryStoreRow } from '../stores/model.ts'
import type { MemoryEntryInput, MemoryEntryRow } from './model.ts'
import { type MatchedMemory, type Written, writeFact } from './write.ts'

/**
 * Whose a fact is that a caller states. In a turn it is the end user's, and nobody else's unless the agent shares facts.
 * @throws VALIDATION_FAILED, ACTOR_NOT_FOUND
 */
export async function claimedActor(
  db: Queryable,
  caller: Pick<Caller, 'bounds'>,
  projectId: string,
  given: string | null | undefined,
  path = 'actor_id',
): Promise<string | null> {
  const bound = memoryBound(caller)
  if (given === undefined) return bound?.actor_id ?? null
  if (bound && !bound.shared && given !== bound.actor_id)
    raiseInvalid({ code: 'INVALID_VALUE', path, message: 'must be the end user of the turn' })
  if (given !== null) await requireAll(db, kinds.get('actor'), projectId, [given])
  return given
}

type Claiming = Context<Record<string, unknown>, Omit<MemoryEntryInput, 'dry_run'>>

/**
 * Writes the fact of a request: what callers may do, what they name and what the project may still store is checked before.
 * @param options.resolves allows the fact to resolve into the memory that it finds
 * @param options.named what the audit entry is about; default the entry
 * @param options.shown the body of the answer
 * @throws VALIDATION_FAILED, FORBIDDEN, RESOURCE_NOT_FOUND, QUOTA_STORAGE_EXCEEDED
 */
export async function submitFact(
  context: Claiming,
  {
    dryRun,
    resolves,
    named = ({ id }) => id,
    shown,
  }: {
    dryRun?: boolean
    resolves: (found: MatchedMemory) => void
    named?: (entry: MemoryEntryRow) => string | null
    shown: (written: Written) => object
  },
) {
  const { audit, body, caller, project, record, services } = context
  const { principal } = caller
  const { project_id, ...claim } = body
  const actor_id = await claimedActor(services.pool, caller, project as string, claim.actor_id)
  const check = async (store: MemoryStoreRow) => {
    if (store.project_id !== project) raise('RESOURCE_NOT_FOUND', { meta: { id: store.id } })
    if (project_id != null && project_id !== project)
      raiseInvalid({ code: 'INVALID_VALUE', path: 'project_id', message: 'must be the project of the store' })
    requireFuture(claim.expires_at, services.clock.now())
    if (claim.source_id != null) await requireAll(services.pool, kinds.get('conversation'), project, [claim.source_id])
    if (claim.supersedes != null) await allowReplacing(context, claim.supersedes)
    if (!dryRun) await checkStorage(services, project, Buffer.byteLength(claim.content))
  }
  const found = (of: MatchedMemory) => {
    resolves(of)
    // What thresholds of the caller's own find is as if it were named.
    if (of.replaced && of.chosen) allowChange(context, of.memory)
  }
  return writeFact(
    services,
    { ...claim, actor_id, mechanism: audit.detail.surface === 'formation' ? 'formation' : 'api', principal },
    {
      dryRun,
      check,
      found,
      within: async (tx, written) => {
        const { entry } = written
        record(tx, responseStatus(entry), { id: named(entry) ?? undefined, body: shown(written) })
      },
    },
  )
}

export const responseStatus = ({ action }: Pick<MemoryEntryRow, 'action'>): 200 | 201 =>
  action === 'created' ? 201 : 200

/** The memory that a claim replaces is changed by it. Raises RESOURCE_NOT_FOUND, FORBIDDEN. */
async function allowReplacing({ services, allow, project, caller }: Claiming, id: string): Promise<void> {
  const target = isIdOf(memoryKind, id) ? await memoryKind.find(services.pool, id) : null
  if (!target || target.project_id !== project || !canReachMemory(reachOf(caller), target))
    return raise('RESOURCE_NOT_FOUND', { meta: { id } })
  allowChange({ allow }, target)
}

function allowChange({ allow }: Pick<Claiming, 'allow'>, row: MemoryRow): void {
  allow('memories:UpdateMemory', { kind: memoryKind, row })
  allow('memories:UpdateMemory', storePolicyTarget(row))
}
