import { checkStorage } from '#control/quotas/storage.ts'
import { isIdOf, kinds } from '#core/api/kind.ts'
import type { Context, ParentRoute } from '#core/api/operation.ts'
import { requireAll } from '#core/api/references.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import { storableText } from '#core/base/storable-text.ts'
import type { Queryable } from '#core/db/sql.ts'
import { memoryBound, reachOf } from '#core/iam/authority.ts'
import type { Caller } from '#core/iam/caller.ts'
import { contentHash } from '../facts/hash.ts'
import { MAX_CONTENT, type MemoryRow, memoryKind, requireFuture, storePolicyTarget } from '../facts/model.ts'
import { canReachMemory } from '../reach.ts'
import { type MemoryStoreRow, memoryStoreKind } from '../stores/model.ts'
import type { MemoryEntryInput, MemoryEntryRow } from './model.ts'
import { readStoreState, type StoreState } from './store.ts'
import { type MatchedMemory, type Written, writeFact } from './write.ts'

/** The parent of a create of a fact: its store, read with what the write needs of it. */
export const storeOfFact: ParentRoute = {
  kind: memoryStoreKind,
  field: 'memory_store_id',
  find: (db, id, { content, actor_id }, caller) =>
    readStoreState(db, {
      memory_store_id: id,
      hash: typeof content === 'string' && content.length <= MAX_CONTENT ? contentHash(storableText(content)) : '',
      actor_id: typeof actor_id === 'string' ? actor_id : defaultActor(caller, actor_id),
    }),
}

/** The end user of a fact that names none: the end user of the turn, unless the fact is for none. */
const defaultActor = (caller: Pick<Caller, 'bounds'>, named: unknown): string | null =>
  named === undefined ? (memoryBound(caller)?.actor_id ?? null) : null

/**
 * Returns the end user of a submitted fact, in a turn by default the end user of the turn. Another end user is allowed
 * in a turn only if the agent shares facts.
 * @throws VALIDATION_FAILED, ACTOR_NOT_FOUND
 */
export async function resolveFactActor(
  db: Queryable,
  caller: Pick<Caller, 'bounds'>,
  projectId: string,
  actorId: string | null | undefined,
  path = 'actor_id',
): Promise<string | null> {
  const bound = memoryBound(caller)
  if (actorId === undefined) return defaultActor(caller, actorId)
  if (bound && !bound.shared && actorId !== bound.actor_id)
    raiseInvalid({ code: 'INVALID_VALUE', path, message: 'must be the end user of the turn' })
  if (actorId !== null) await requireAll(db, kinds.get('actor'), projectId, [actorId])
  return actorId
}

type FactContext = Context<Record<string, unknown>, Omit<MemoryEntryInput, 'dry_run'>>

/**
 * Writes the fact of a request, after checking permissions, references and the storage quota.
 * @param options.onMatch checks permissions on the matched memory
 * @param options.resourceIdOf returns the resource of the audit entry; default the memory entry
 * @param options.present returns the response body
 * @throws VALIDATION_FAILED, FORBIDDEN, RESOURCE_NOT_FOUND, QUOTA_STORAGE_EXCEEDED
 */
export async function submitFact(
  context: FactContext,
  {
    dryRun,
    onMatch,
    resourceIdOf = ({ id }) => id,
    present,
  }: {
    dryRun?: boolean
    onMatch: (match: MatchedMemory) => void
    resourceIdOf?: (entry: MemoryEntryRow) => string | null
    present: (written: Written) => object
  },
) {
  const { body, caller, project, record, services, surface, under } = context
  const { principal } = caller
  const { project_id, ...fact } = body
  const actor_id = await resolveFactActor(services.pool, caller, project as string, fact.actor_id)
  const check = async (store: MemoryStoreRow) => {
    if (store.project_id !== project) raise('RESOURCE_NOT_FOUND', { meta: { id: store.id } })
    if (project_id != null && project_id !== project)
      raiseInvalid({ code: 'INVALID_VALUE', path: 'project_id', message: 'must be the project of the store' })
    requireFuture(fact.expires_at, services.clock.now())
    if (fact.source_id != null) await requireAll(services.pool, kinds.get('conversation'), project, [fact.source_id])
    if (fact.supersedes != null) await allowReplacement(context, fact.supersedes)
    if (!dryRun) await checkStorage(services, project, Buffer.byteLength(fact.content))
  }
  const checkMatch = (match: MatchedMemory) => {
    onMatch(match)
    // A match because of thresholds in the request requires the same permission as `supersedes`.
    if (match.replaced && match.chosen) allowUpdate(context, match.memory)
  }
  return writeFact(
    services,
    { ...fact, actor_id, mechanism: surface === 'formation' ? 'formation' : 'api', principal },
    {
      dryRun,
      state: under as StoreState | null,
      check,
      onMatch: checkMatch,
      within: async (tx, written) => {
        const { entry } = written
        record(tx, responseStatus(entry), { id: resourceIdOf(entry) ?? undefined, body: present(written) })
      },
    },
  )
}

export const responseStatus = ({ action }: Pick<MemoryEntryRow, 'action'>): 200 | 201 =>
  action === 'created' ? 201 : 200

/** Requires permission to update the memory that a fact replaces. Raises RESOURCE_NOT_FOUND, FORBIDDEN. */
async function allowReplacement({ services, allow, project, caller }: FactContext, id: string): Promise<void> {
  const target = isIdOf(memoryKind, id) ? await memoryKind.find(services.pool, id) : null
  if (!target || target.project_id !== project || !canReachMemory(reachOf(caller), target))
    return raise('RESOURCE_NOT_FOUND', { meta: { id } })
  allowUpdate({ allow }, target)
}

function allowUpdate({ allow }: Pick<FactContext, 'allow'>, row: MemoryRow): void {
  allow('memories:UpdateMemory', { kind: memoryKind, row })
  allow('memories:UpdateMemory', storePolicyTarget(row))
}
