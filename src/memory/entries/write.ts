import { StatementTimeoutError } from 'slonik'
import { currentSpace, type Space } from '#content/index/embeddings/space.ts'
import { cosineSimilarity, nearestRows } from '#content/index/vectors/scan.ts'
import { decodeVector, VECTOR_SOURCES, vectorsOfRefs } from '#content/index/vectors/store.ts'
import { isIdOf } from '#core/api/kind.ts'
import { MetadataBag } from '#core/api/metadata.ts'
import { systemClock } from '#core/base/clock.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import type { Services } from '#core/base/services.ts'
import { storableText } from '#core/base/storable-text.ts'
import { type SpanStart, traced } from '#core/base/telemetry.ts'
import { ATTRIBUTE, OPERATION } from '#core/base/telemetry-names.ts'
import { isForeignKeyViolation, type Queryable, sql } from '#core/db/sql.ts'
import type { Outbox, Tx } from '#core/writes/writer.ts'
import { embedContent } from '../facts/embed.ts'
import { contentHash } from '../facts/hash.ts'
import { MAX_CONTENT, type MemoryRow, memoryKind, requireCurrent } from '../facts/model.ts'
import {
  addMemory,
  type Candidate,
  type EmbeddedMemory,
  type FactComparison,
  MAX_EVICTED,
  type NewMemory,
  readComparison,
} from '../facts/store.ts'
import { ownerKeyOf } from '../reach.ts'
import { type MemoryStoreRow, memoryStoreKind } from '../stores/model.ts'
import { effectiveThresholds } from '../stores/thresholds.ts'
import { type Mechanism, type MemoryEntryRow, memoryEntryKind } from './model.ts'
import { entryInsert, isStateFor, lockForWrite, type NewMemoryEntry, readStoreState, type StoreState } from './store.ts'

/** A fact submitted to a memory store. */
export type SubmittedFact = {
  memory_store_id: string
  content: string
  tags?: Record<string, string>
  metadata?: Record<string, unknown> | null
  source_type: 'manual' | 'conversation'
  source_id?: string | null
  /** End user that the fact belongs to, or null. */
  actor_id?: string | null
  /** Memory that the fact replaces, regardless of similarity. */
  supersedes?: string | null
  /** Override the thresholds of the store. */
  duplicate_threshold?: number | null
  supersede_threshold?: number | null
  expires_at?: string | null
  mechanism: Mechanism
  memory_rule_id?: string | null
  generation_id?: string | null
  conversation_id?: string | null
  /** Idempotency key of a node execution. */
  attempt_key?: string | null
  principal: { type: string; id: string }
}

/** The memory that already contains a fact or is replaced by it. */
export type MatchedMemory = {
  memory: MemoryRow
  replaced: boolean
  /** Whether the caller chose it by `supersedes`, or by thresholds without which the outcome would differ. */
  chosen: boolean
}

export type Written = { entry: MemoryEntryRow; memory: MemoryRow | null }

/** Maximum number of search candidates compared under the lock; the nearest current one decides. */
const MAX_CANDIDATES = 16
/** Maximum searches for one fact: each is repeated if the memories it found are gone. */
const MAX_SEARCHES = 20

/**
 * Writes a fact: it creates a memory, replaces a similar one, or is skipped as a duplicate. Only memories of the same
 * end user, or without one, are compared. The text is embedded and searched before the transaction; the transaction
 * locks the end user's part of the store and also compares memories written since the search. So of concurrent equal
 * facts only one creates a memory.
 *
 * Uses no language model and merges no texts. A fact that cannot be embedded creates a memory unless its text exists.
 * @param options.dryRun returns the outcome without writing; the memory of a new fact is null
 * @param options.state the store as already read for the fact
 * @param options.check runs with the store before the text is embedded; its errors end the write
 * @param options.onMatch runs with the matched memory before anything is written; its errors end the write
 * @param options.within runs in the transaction, after the rows are written
 * @param options.admitted part of work whose quotas were already checked
 * @throws RESOURCE_NOT_FOUND for a missing store or a missing memory to replace; ACTOR_NOT_FOUND; VALIDATION_FAILED;
 *   QUOTA_EXCEEDED
 */
export const writeFact = (services: Services, submitted: SubmittedFact, options: WriteOptions = {}): Promise<Written> =>
  traced(factSpan, submitted, () => write(services, submitted, options))

type WriteOptions = {
  dryRun?: boolean
  state?: StoreState | null
  check?: (store: MemoryStoreRow) => Promise<void>
  onMatch?: (match: MatchedMemory) => void
  within?: (tx: Tx, written: Written) => Promise<void>
  admitted?: boolean
}

const factSpan = ({ memory_store_id }: SubmittedFact): SpanStart => ({
  name: OPERATION.upsertMemory,
  attributes: { [ATTRIBUTE.operation]: OPERATION.upsertMemory, [ATTRIBUTE.memoryStore]: memory_store_id },
})

async function write(services: Services, submitted: SubmittedFact, options: WriteOptions): Promise<Written> {
  const fact = parseFact(submitted)
  const { admitted, state, check } = options
  const reportMatch = ({ action, match, similarity }: Decision, store: FactComparison['store']): void => {
    if (!match) return
    const chosen = fact.supersedes != null || actionFor(similarity, effectiveThresholds(store)) !== action
    options.onMatch?.({ memory: match, replaced: action === 'superseded', chosen })
  }
  const dryRun = async (prepared: PreparedFact): Promise<Written | null> => {
    const comparison = await requireComparison(services.pool, fact, prepared)
    const decision = decide(comparison, fact, prepared)
    if (!decision) return null
    reportMatch(decision, comparison.store)
    return dryRunResult(prepared.store, fact, decision)
  }
  const writeNow = (prepared: PreparedFact): Promise<Written | null> =>
    services.write(async tx => {
      const { id, project_id } = prepared.store
      await lockForWrite(tx, { id, project_id, actor_id: fact.actor_id })
      const comparison = await requireComparison(tx, fact, prepared)
      if (!comparison.has_owner) raise('ACTOR_NOT_FOUND', { meta: { id: fact.actor_id, missing: [fact.actor_id] } })
      const decision = decide(comparison, fact, prepared)
      if (!decision) return null
      reportMatch(decision, comparison.store)
      const written = writeDecision(services, tx, { comparison, fact, decision, prepared })
      await options.within?.(tx, written)
      return written
    })
  try {
    let prepared = await prepareFact(services, fact, { admitted, state, check })
    for (let search = 1; search <= MAX_SEARCHES; search++) {
      const written = await (options.dryRun ? dryRun(prepared) : writeNow(prepared))
      if (written) return written
      prepared = await prepareFact(services, fact, { admitted, again: true })
    }
  } catch (error) {
    // The deletion of a project deletes its stores without their locks.
    if (isForeignKeyViolation(error, 'memory_store_id'))
      raise('RESOURCE_NOT_FOUND', { meta: { id: fact.memory_store_id }, cause: error })
    throw error
  }
  throw new Error(`memories of ${fact.memory_store_id} changed during ${MAX_SEARCHES} searches`)
}

type ParsedFact = SubmittedFact & {
  hash: string
  actor_id: string | null
  tags: Record<string, string>
  metadata: Record<string, unknown> | null
}

/** Raises VALIDATION_FAILED, RESOURCE_NOT_FOUND. */
function parseFact(fact: SubmittedFact): ParsedFact {
  const content = storableText(fact.content).trim()
  const problem =
    content === ''
      ? 'must not be empty'
      : content.length > MAX_CONTENT
        ? `must have at most ${MAX_CONTENT} characters`
        : null
  if (problem) raiseInvalid({ code: 'INVALID_VALUE', path: 'content', message: problem })
  if (!isIdOf(memoryStoreKind, fact.memory_store_id))
    raise('RESOURCE_NOT_FOUND', { meta: { id: fact.memory_store_id } })
  return {
    ...fact,
    content,
    hash: contentHash(content),
    actor_id: fact.actor_id ?? null,
    tags: fact.tags ?? {},
    metadata: fact.metadata ?? null,
  }
}

/** Vectors and candidates of a fact, determined before its store is locked. */
type PreparedFact = {
  store: StoreState
  /** Null if the text was not embedded, because the store has it. */
  embedded: EmbeddedMemory | null
  /** IDs of the nearest memories. */
  near: string[]
  /** Whether more memories may be near. */
  more: boolean
}

/**
 * Embeds a fact and searches for similar memories.
 * @param options.again the memory with the same text, or all near ones, were invalidated concurrently
 */
async function prepareFact(
  services: Services,
  fact: ParsedFact,
  {
    again = false,
    admitted,
    state = null,
    check,
  }: {
    again?: boolean
    admitted?: boolean
    state?: StoreState | null
    check?: (store: MemoryStoreRow) => Promise<void>
  },
): Promise<PreparedFact> {
  const store =
    (state && isStateFor(state, fact) ? state : await readStoreState(services.pool, fact)) ??
    raise('RESOURCE_NOT_FOUND', { meta: { id: fact.memory_store_id } })
  await check?.(store)
  const { supersede } = effectiveThresholds(fact, store)
  if (store.twin && !again && !fact.supersedes && !isDeclared(fact))
    return { store, embedded: null, near: [], more: false }
  const embedded =
    (store.twin === null ? null : await findVectors(services, store.twin)) ??
    (await embedContent(services, { project_id: store.project_id, ref: store.id, content: fact.content, admitted }))
  const { space, vectors } = embedded
  if (fact.supersedes || isDeclared(fact) || !space || vectors.length === 0)
    return { store, embedded, near: [], more: false }
  const near = await findNearest(services, store, space, {
    actor_id: fact.actor_id,
    vector: vectors[0],
    relevant: supersede,
  })
  return { store, embedded, near: near.slice(0, MAX_CANDIDATES), more: near.length > MAX_CANDIDATES }
}

/** Returns the vector of a memory with the same text, or null. */
async function findVectors(services: Services, id: string): Promise<EmbeddedMemory | null> {
  const space = await currentSpace(services)
  if (!space) return null
  const rows = await vectorsOfRefs(services.pool, { source: VECTOR_SOURCES.memory, ref_ids: [id], space_id: space.id })
  return rows.length === 1 ? { vectors: [decodeVector(rows[0].vec)], failed: false, space } : null
}

/**
 * Returns IDs of memories of an end user, or without one, by similarity to a vector. If memories without an end user
 * are at least half of the project, they are searched in the vector codes cached by the process, else by the database
 * index.
 */
async function findNearest(
  services: Services,
  store: StoreState,
  space: Space,
  { actor_id, ...query }: { actor_id: string | null; vector: Float32Array; relevant: number },
): Promise<string[]> {
  try {
    const rows = await nearestRows(services, {
      projects: [store.project_id],
      space,
      source: VECTOR_SOURCES.memory,
      filter: ({ container, owner }) => sql.fragment`${container} = ${store.id} and ${owner} = ${ownerKeyOf(actor_id)}`,
      whole:
        actor_id === null &&
        store.project_count !== null &&
        2 * (store.valid_count - store.marked_count) >= store.project_count,
      ...query,
      limit: 1,
    })
    return rows.map(({ ref_id }) => ref_id)
  } catch (error) {
    if (!(error instanceof StatementTimeoutError)) throw error
    services.log.warn({ memory_store_id: store.id }, 'memory written without similarity search (timeout)')
    return []
  }
}

type Decision = {
  action: Exclude<MemoryEntryRow['action'], 'updated'>
  similarity: number | null
  /** The memory that already contains the fact, or the one to replace. */
  match: Candidate | null
}

const createdDecision = (similarity: number | null): Decision => ({ action: 'created', similarity, match: null })

/** Whether a fact comes from a template: it is not compared with others and inherits nothing from a replaced memory. */
const isDeclared = ({ mechanism }: Pick<ParsedFact, 'mechanism'>): boolean => mechanism === 'formation'

/** Reads what a fact is compared with. Raises RESOURCE_NOT_FOUND. */
async function requireComparison(
  db: Queryable,
  { actor_id, hash, supersedes = null }: ParsedFact,
  { store, embedded, near }: PreparedFact,
): Promise<FactComparison> {
  const { id, project_id, snapshot } = store
  const space = embedded?.space ?? null
  const query = { store: { id, project_id }, actor_id, hash, supersedes, near, snapshot, space }
  return (await readComparison(db, query)) ?? raise('RESOURCE_NOT_FOUND', { meta: { id } })
}

/**
 * Decides the outcome of a fact by the current memories of the store; null if all memories found by the search are
 * gone, so that it must be repeated. Raises VALIDATION_FAILED, RESOURCE_NOT_FOUND.
 */
function decide({ store, candidates }: FactComparison, fact: ParsedFact, prepared: PreparedFact): Decision | null {
  const { embedded, more } = prepared
  const thresholds = effectiveThresholds(fact, store)
  const { actor_id, hash, supersedes = null } = fact
  if (isDeclared(fact) && !supersedes) return createdDecision(null)
  const similarityTo = (candidate: Candidate): number | null =>
    similarityOf(embedded?.vectors ?? [], candidate.vectors ?? [])
  if (supersedes) {
    const target =
      candidates.find(({ id }) => id === supersedes) ?? raise('RESOURCE_NOT_FOUND', { meta: { id: supersedes } })
    if (target.memory_store_id !== store.id)
      raiseInvalid({ code: 'INVALID_VALUE', path: 'supersedes', message: 'must be a memory of the same store' })
    if (target.actor_id !== actor_id)
      raiseInvalid({ code: 'INVALID_VALUE', path: 'supersedes', message: 'must be a memory with the same actor_id' })
    requireCurrent(target, 'supersedes')
    return { action: 'superseded', similarity: target.hash === hash ? 1 : similarityTo(target), match: target }
  }
  const twin = candidates.find(candidate => candidate.hash === hash)
  if (twin) return { action: 'skipped', similarity: 1, match: twin }
  if (!embedded) return null
  const [top] = candidates
    .map(candidate => ({ candidate, similarity: similarityTo(candidate) ?? -2 }))
    .sort((left, right) => right.similarity - left.similarity)
  if (!top) return more ? null : createdDecision(null)
  if (top.similarity < -1) return createdDecision(null)
  const { candidate: match, similarity } = top
  const action = actionFor(similarity, thresholds)
  return action === 'created' ? createdDecision(similarity) : { action, similarity, match }
}

/** Returns the outcome for the similarity of the nearest memory. */
function actionFor(
  similarity: number | null,
  { duplicate, supersede }: ReturnType<typeof effectiveThresholds>,
): Decision['action'] {
  if (similarity === null) return 'created'
  if (similarity >= duplicate) return 'skipped'
  return similarity >= supersede ? 'superseded' : 'created'
}

/**
 * Returns the similarity of two texts: the mean cosine of their corresponding windows, where additional windows count
 * as 0. Null if one text has no vectors.
 */
function similarityOf(text: readonly Float32Array[], other: readonly string[]): number | null {
  if (text.length === 0 || other.length === 0) return null
  const sum = text
    .slice(0, other.length)
    .reduce((total, vector, at) => total + cosineSimilarity(decodeVector(other[at]), vector), 0)
  return Math.min(1, sum / Math.max(text.length, other.length))
}

/** Adds the rows and events of an outcome to the outbox, which writes them with the commit. */
function writeDecision(
  services: Services,
  outbox: Outbox,
  {
    comparison: { at, store, last },
    fact,
    decision,
    prepared,
  }: { comparison: FactComparison; fact: ParsedFact; decision: Decision; prepared: PreparedFact },
): Written {
  const { action, match } = decision
  const submit = (memory_id: string | null): MemoryEntryRow => {
    const entry = entryOf(store, fact, decision, memory_id)
    outbox.alongside(guard => entryInsert(entry, guard))
    return { ...entry, created_at: at, store_tags: store.tags }
  }
  if (action === 'skipped') return { entry: submit(match?.id ?? null), memory: match }
  const evicted = evictedBy(last, match)
  const memory = addMemory(outbox, memoryOf(store, fact, match), prepared.embedded as EmbeddedMemory, {
    textSearchConfig: services.config.KNOWLEDGE_TEXT_SEARCH_CONFIG,
    at,
    store_tags: store.tags,
    supersedes: match?.id ?? null,
    evicted: evicted.map(({ id }) => id),
  })
  outbox.emit(memoryKind, 'created', memory)
  const retired = { embedded: false, invalidated_at: at, updated_at: at }
  if (match) {
    const superseded = { ...match, ...retired, superseded_by_memory_id: memory.id }
    outbox.emit(memoryKind, 'superseded', superseded, { extra: { superseded_by: memory.id } })
  }
  for (const row of evicted) outbox.emit(memoryKind, 'retracted', { ...row, ...retired })
  return { entry: submit(memory.id), memory }
}

/**
 * Returns the memories that a new one evicts.
 * @param last current memories of the end user from the limit on, newest first
 * @param replaced memory that the new one replaces, whose place it takes
 */
function evictedBy(last: readonly MemoryRow[], replaced: MemoryRow | null): MemoryRow[] {
  const others = last.filter(({ id }) => id !== replaced?.id)
  return (replaced && others.length === last.length ? others.slice(1) : others).slice(0, MAX_EVICTED)
}

/** Returns the memory for a fact, which inherits tags and metadata of the memory it replaces. */
function memoryOf(store: FactComparison['store'], fact: ParsedFact, replaced: MemoryRow | null): NewMemory {
  const source = isDeclared(fact) ? null : replaced
  return {
    id: newId(memoryKind.prefix),
    project_id: store.project_id,
    memory_store_id: store.id,
    content: fact.content,
    hash: fact.hash,
    source_type: fact.source_type,
    source_id: fact.source_id ?? null,
    actor_id: fact.actor_id,
    tags: source ? mergeTags(source.tags, fact.tags) : fact.tags,
    metadata: source?.metadata ? mergeMetadata(source.metadata, fact.metadata) : fact.metadata,
    expires_at: fact.expires_at ?? null,
  }
}

const MAX_TAGS = 50

/** Merges tags; new ones take precedence, and old ones are dropped above the limit. */
const mergeTags = (old: Record<string, string>, incoming: Record<string, string>): Record<string, string> => {
  const inherited = Object.entries(old).filter(([key]) => !Object.hasOwn(incoming, key))
  return {
    ...Object.fromEntries(inherited.slice(0, Math.max(0, MAX_TAGS - Object.keys(incoming).length))),
    ...incoming,
  }
}

/** Merges metadata; new keys take precedence. Returns only the new metadata if the result exceeds the limits. */
const mergeMetadata = (old: Record<string, unknown>, incoming: Record<string, unknown> | null) => {
  const merged = { ...old, ...incoming }
  return MetadataBag.safeParse(merged).success ? merged : incoming
}

const entryOf = (
  store: FactComparison['store'],
  fact: ParsedFact,
  { action, similarity, match }: Decision,
  memory_id: string | null,
): NewMemoryEntry => ({
  id: newId(memoryEntryKind.prefix),
  project_id: store.project_id,
  memory_store_id: store.id,
  content: fact.content,
  action,
  memory_id,
  superseded_memory_id: action === 'superseded' ? (match?.id ?? null) : null,
  similarity,
  declared: fact.supersedes != null,
  mechanism: fact.mechanism,
  memory_rule_id: fact.memory_rule_id ?? null,
  generation_id: fact.generation_id ?? null,
  conversation_id: fact.conversation_id ?? null,
  source_id: fact.source_id ?? null,
  actor_id: fact.actor_id,
  attempt_key: fact.attempt_key ?? null,
  principal_type: fact.principal.type,
  principal_id: fact.principal.id,
  tags: fact.tags,
  metadata: fact.metadata,
})

/** Returns the entry and memory of a dry run. */
const dryRunResult = (store: StoreState, fact: ParsedFact, decision: Decision): Written => {
  const memory = decision.action === 'skipped' ? decision.match : null
  const entry = entryOf(store, fact, decision, memory?.id ?? null)
  return { entry: { ...entry, created_at: systemClock.now().toISOString(), store_tags: store.tags }, memory }
}
