import { newId } from '../api/ids.ts'

/** One row of the event registry (control, 1.4): a resource type and the verbs it emits. */
export type EventFamily = { resource_type: string; prefix: string; verbs: readonly string[]; notes?: string }

const families = [
  { resource_type: 'project', prefix: 'projects', verbs: ['updated', 'paused', 'resumed'] },
  {
    resource_type: 'project_key',
    prefix: 'project_keys',
    verbs: ['created', 'updated', 'deleted'],
    notes: 'the key string is never present',
  },
  {
    resource_type: 'secret',
    prefix: 'secrets',
    verbs: ['created', 'updated', 'deleted'],
    notes: 'as GET shows it; the value is in neither',
  },
  { resource_type: 'file', prefix: 'files', verbs: ['created', 'updated', 'deleted'] },
  {
    resource_type: 'document',
    prefix: 'documents',
    verbs: ['created', 'updated', 'deleted', 'withdrawn', 'restored', 'ingested', 'ingest_failed'],
    notes: 'without content; ingested adds chunk_count, ingest_failed carries error',
  },
  { resource_type: 'ingestion_rule', prefix: 'ingestion_rules', verbs: ['created', 'updated', 'deleted'] },
  { resource_type: 'metadata_schema', prefix: 'metadata_schemas', verbs: ['created', 'updated', 'deleted'] },
  { resource_type: 'actor', prefix: 'actors', verbs: ['created', 'updated', 'deleted'] },
  { resource_type: 'conversation', prefix: 'conversations', verbs: ['created', 'updated', 'deleted'] },
  {
    resource_type: 'conversation_message',
    prefix: 'conversation_messages',
    verbs: ['created', 'generated', 'deleted'],
    notes: 'resource_id = document_id; generated adds agent_id, generation_id, trace_id',
  },
  {
    resource_type: 'session',
    prefix: 'sessions',
    verbs: [
      'created',
      'updated',
      'deleted',
      'closed',
      'expired',
      'tags_updated',
      'generation_started',
      'generation_requires_action',
      'generation_completed',
      'generation_failed',
    ],
    notes: 'generation_* add generation_id, trace_id and, when they apply, required_action or error',
  },
  { resource_type: 'ai_provider', prefix: 'ai_providers', verbs: ['created', 'updated', 'deleted'] },
  { resource_type: 'agent', prefix: 'agents', verbs: ['created', 'updated', 'deleted'] },
  {
    resource_type: 'generation',
    prefix: 'generations',
    verbs: ['started', 'requires_action', 'completed', 'failed', 'content_purged'],
    notes: 'failed carries error, requires_action carries required_action',
  },
  { resource_type: 'trace', prefix: 'traces', verbs: ['content_purged'] },
  {
    resource_type: 'quota',
    prefix: 'quotas',
    verbs: ['created', 'updated', 'deleted', 'warned'],
    notes: 'warned adds window_key, observed_value, fraction',
  },
  {
    resource_type: 'quota',
    prefix: 'quota',
    verbs: ['exceeded'],
    notes: 'fixed fields instead of the record; singular by exception',
  },
  {
    resource_type: 'webhook',
    prefix: 'webhooks',
    verbs: ['created', 'updated', 'deleted', 'secret_rotated', 'test'],
    notes: 'the secret is never present',
  },
  { resource_type: 'audit_entry', prefix: 'audit_entries', verbs: ['created'], notes: 'project-scoped entries only' },
] as const satisfies EventFamily[]

type Families = (typeof families)[number]
type NamesOf<F> = F extends { prefix: infer P extends string; verbs: readonly (infer V extends string)[] }
  ? `${P}.${V}`
  : never

/** Every name that can be emitted; an unknown one does not compile. */
export type EventName = NamesOf<Families>

export const eventFamilies: readonly EventFamily[] = families

const types = new Map<string, string>()
for (const family of eventFamilies)
  for (const verb of family.verbs) types.set(`${family.prefix}.${verb}`, family.resource_type)

/** Older spellings that a subscription may use; the envelope always carries the canonical name (control, 1.4). */
const aliases: Record<string, string> = {
  'agents.generation.requires_action': 'generations.requires_action',
  'agents.generation.completed': 'generations.completed',
  'agents.generation.failed': 'generations.failed',
  'conversations.message.created': 'conversation_messages.created',
  'conversations.message.generated': 'conversation_messages.generated',
  'conversations.message.deleted': 'conversation_messages.deleted',
  'sessions.generation.started': 'sessions.generation_started',
  'sessions.generation.requires_action': 'sessions.generation_requires_action',
  'sessions.generation.completed': 'sessions.generation_completed',
  'audit.entry_created': 'audit_entries.created',
  'quotas.exceeded': 'quota.exceeded',
}

const aliasesOf = new Map<string, string[]>()
for (const [alias, name] of Object.entries(aliases)) aliasesOf.set(name, [...(aliasesOf.get(name) ?? []), alias])

export const eventNames: readonly string[] = [...types.keys(), ...Object.keys(aliases)]
export const eventTypes: ReadonlySet<string> = new Set(eventFamilies.map(family => family.resource_type))

/** Aliases by canonical name, for the registry route. */
export const eventAliases = (name: string): string[] => aliasesOf.get(name) ?? []

const PATTERN = /^(\*|[a-z0-9_]+(\.[a-z0-9_]+)*(\.\*)?)$/

/** Syntax of a subscription pattern (control, 1.5). */
export const isEventPattern = (pattern: string): boolean => pattern.length <= 128 && PATTERN.test(pattern)

const matches = (pattern: string, name: string): boolean =>
  pattern === '*' || pattern === name || (pattern.endsWith('.*') && name.startsWith(pattern.slice(0, -1)))

/** A pattern matches an event when it matches its name or one of its aliases. */
export const patternMatches = (pattern: string, name: string): boolean =>
  matches(pattern, name) || (aliasesOf.get(name)?.some(alias => matches(pattern, alias)) ?? false)

/** An event as it is written: `envelope` is the exact text that every delivery sends. */
export type StoredEvent = {
  id: string
  project_id: string
  name: string
  resource_type: string
  resource_id: string
  envelope: string
  created_at: string
}

/**
 * Builds an event. `record` is the resource as its GET returns it; `extra` are facts beside the record's keys.
 * `maxBytes` > 0 cuts larger data to its scalar fields (EVENT_DATA_MAX_BYTES).
 */
export function makeEvent(
  name: EventName,
  projectId: string,
  resourceId: string,
  record: object,
  extra: object | undefined,
  maxBytes: number,
): StoredEvent {
  const id = newId('evt')
  const resource_type = types.get(name) as string
  const timestamp = new Date().toISOString()
  let data: object = extra ? { ...record, ...extra } : record
  if (maxBytes > 0 && Buffer.byteLength(JSON.stringify(data)) > maxBytes) {
    data = {
      ...Object.fromEntries(Object.entries(data).filter(([, value]) => value === null || typeof value !== 'object')),
      truncated: true,
    }
  }
  const envelope = JSON.stringify({
    id,
    event: name,
    project_id: projectId,
    resource_type,
    resource_id: resourceId,
    data,
    timestamp,
  })
  return { id, project_id: projectId, name, resource_type, resource_id: resourceId, envelope, created_at: timestamp }
}
