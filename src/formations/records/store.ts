import { NotNullIntegrityConstraintViolationError, UniqueIntegrityConstraintViolationError } from 'slonik'
import { z } from 'zod'
import { RecordedFailure } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import { sealedColumn } from '#core/db/sealed.ts'
import { type Fragment, jsonb, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import type { Caller, PrincipalRecord } from '#core/iam/caller.ts'
import type { WorkClaim } from '#core/work/store.ts'
import {
  FormationEvent,
  type FormationOperation,
  type FormationResource,
  OPERATION_STATUSES,
  OPERATION_TYPES,
  PlanChange,
  RESOURCE_STATUSES,
} from './model.ts'

/** Credential of the request of an operation. Its calls count as calls of this credential, not as background work. */
export type DeployCredential = Pick<Caller['credential'], 'type' | 'id'> & { bound: boolean }

/** Columns of the work item of an operation: principal and credential of its request. */
export const operationWorkColumns = {
  principal: z.custom<PrincipalRecord>(),
  credential: z.custom<DeployCredential>(),
}
export type OperationWorkColumns = z.output<z.ZodObject<typeof operationWorkColumns>>

export const insertOperationWork = (
  db: Queryable,
  formationId: string,
  operationId: string,
  principal: PrincipalRecord,
  credential: DeployCredential,
) =>
  db.query(voidStatement`
    insert into formation_attempts (formation_id, id, principal, credential)
    values (${formationId}, ${operationId}, ${jsonb(principal)}, ${jsonb(credential)})`)

const TrackedRow = z.strictObject({
  id: z.string(),
  logical_id: z.string(),
  resource_type: z.string(),
  physical_resource_id: z.string().nullable(),
  status: z.enum(RESOURCE_STATUSES),
  position: z.int(),
  retain: z.boolean(),
  prevent_destroy: z.boolean(),
  applied: z.record(z.string(), z.unknown()),
  shown: z.record(z.string(), z.unknown()),
  hashes: z.record(z.string(), z.string()),
  attributes: z.record(z.string(), z.unknown()).nullable(),
  replaced: z.array(z.object({ physical_resource_id: z.string(), retain: z.boolean() })),
  refusals: z.int(),
  applied_at: z.string().nullable(),
})
/** A resource that a formation tracks. */
export type TrackedRow = z.output<typeof TrackedRow>

/** Values of a tracked resource that no deploy has applied. */
export const newTrackedRow = {
  status: 'created',
  applied: {},
  shown: {},
  hashes: {},
  attributes: null,
  replaced: [],
  refusals: 0,
  applied_at: null,
} satisfies Partial<TrackedRow>

const tracked = sql.type(TrackedRow)
const COLUMNS = sql.fragment`id, logical_id, resource_type, physical_resource_id, status, position, retain, prevent_destroy, applied, shown, hashes, attributes, replaced, refusals, applied_at`

/** Lists the resources of a formation, without deleted ones, in order. By formation_resources_formation. */
export const listTrackedResources = (db: Queryable, formationId: string): Promise<readonly TrackedRow[]> =>
  db.any(tracked`
    select ${COLUMNS} from formation_resources where formation_id = ${formationId} and status <> 'deleted' order by position, id`)

/**
 * Lists resources, including deleted ones, with replaced resources that still have to be deleted. By
 * formation_resources_formation.
 */
export const listReplacedResources = (db: Queryable, formationId: string): Promise<readonly TrackedRow[]> =>
  db.any(tracked`
    select ${COLUMNS} from formation_resources where formation_id = ${formationId} and replaced <> '[]' order by position, id`)

const listed = sql.type(
  z.strictObject({
    id: z.string(),
    logical_id: z.string(),
    resource_type: z.string(),
    physical_resource_id: z.string().nullable(),
    status: z.enum(RESOURCE_STATUSES),
  }),
)

/** Lists current resources of a formation, then deleted ones, for responses. By formation_resources_formation. */
export const listFormationResources = (db: Queryable, formationId: string): Promise<readonly FormationResource[]> =>
  db.any(listed`
    select id, logical_id, resource_type, physical_resource_id, status from formation_resources
    where formation_id = ${formationId} order by status = 'deleted', position, id`)

/** New values of columns of a tracked resource. */
export type ResourceChange = Partial<
  Pick<
    TrackedRow,
    'physical_resource_id' | 'status' | 'applied' | 'shown' | 'hashes' | 'attributes' | 'replaced' | 'refusals'
  >
>

const assignments = (values: ResourceChange): Fragment => {
  const parts: Fragment[] = []
  const { physical_resource_id, status, applied, shown, hashes, attributes, replaced, refusals } = values
  if (physical_resource_id !== undefined) parts.push(sql.fragment`physical_resource_id = ${physical_resource_id}`)
  if (status !== undefined) parts.push(sql.fragment`status = ${status}`)
  if (applied !== undefined) parts.push(sql.fragment`applied = ${JSON.stringify(applied)}::json, applied_at = now()`)
  if (shown !== undefined) parts.push(sql.fragment`shown = ${JSON.stringify(shown)}::json`)
  if (hashes !== undefined) parts.push(sql.fragment`hashes = ${jsonb(hashes)}`)
  if (attributes !== undefined) parts.push(sql.fragment`attributes = ${jsonb(attributes)}`)
  if (replaced !== undefined) parts.push(sql.fragment`replaced = ${jsonb(replaced)}`)
  if (refusals !== undefined) parts.push(sql.fragment`refusals = ${refusals}`)
  return sql.fragment`${sql.join(parts, sql.fragment`, `)}`
}

/** Returns the statement that updates a tracked resource. */
export const updateTracked = (id: string, values: ResourceChange, guard: Fragment = sql.fragment`true`): Fragment =>
  sql.fragment`update formation_resources set ${assignments(values)} where id = ${id} and ${guard}`

/** Attributes of a declared resource other than its properties. */
export type ArrangedResource = Pick<TrackedRow, 'logical_id' | 'position' | 'retain' | 'prevent_destroy'>

/** Inserts declared resources that are not tracked yet. */
export async function insertPending(
  db: Queryable,
  formationId: string,
  rows: readonly (ArrangedResource & Pick<TrackedRow, 'resource_type'>)[],
): Promise<readonly TrackedRow[]> {
  if (rows.length === 0) return []
  return db.any(tracked`
    insert into formation_resources (id, formation_id, logical_id, resource_type, status, position, retain, prevent_destroy)
    select id, ${formationId}, logical_id, resource_type, 'pending', position, retain, prevent_destroy
    from ${sql.unnest(
      rows.map(row => [
        newId('form_res'),
        row.logical_id,
        row.resource_type,
        row.position,
        row.retain,
        row.prevent_destroy,
      ]),
      ['text', 'text', 'text', 'int4', 'bool', 'bool'],
    )} as n (id, logical_id, resource_type, position, retain, prevent_destroy)
    returning ${COLUMNS}`)
}

/** Updates position, name and policies of tracked resources. */
export async function arrangeResources(
  db: Queryable,
  rows: readonly (ArrangedResource & Pick<TrackedRow, 'id'>)[],
): Promise<void> {
  if (rows.length === 0) return
  await db.query(voidStatement`
    update formation_resources r set position = n.position, retain = n.retain, logical_id = n.logical_id, prevent_destroy = n.prevent_destroy
    from ${sql.unnest(
      rows.map(row => [row.id, row.position, row.retain, row.logical_id, row.prevent_destroy]),
      ['text', 'int4', 'bool', 'text', 'bool'],
    )} as n (id, position, retain, logical_id, prevent_destroy)
    where r.id = n.id`)
}

/**
 * Whether a formation manages a resource. With `projectId`, only formations of the project count: IDs of handlers are unique
 * only per project. By formation_resources_physical.
 */
export const isTracked = (
  db: Queryable,
  resourceType: string,
  id: string,
  projectId: string | null,
): Promise<boolean> =>
  db.exists(voidStatement`
    select from formation_resources r join formations f on f.id = r.formation_id
    where r.physical_resource_id = ${id} and r.resource_type = ${resourceType} and r.status <> 'deleted'
      and (${projectId}::text is null or f.project_id = ${projectId})`)

/** Whether a formation tracks one of some resources. */
export const isAnyTracked = (db: Queryable, ids: readonly string[]): Promise<boolean> =>
  db.exists(voidStatement`
    select from formation_resources where physical_resource_id = any(${sql.array([...ids], 'text')}) and status <> 'deleted'`)

/** Tracks an existing resource without applied properties. */
export const trackExisting = (
  db: Queryable,
  formationId: string,
  row: ArrangedResource & Pick<TrackedRow, 'id' | 'resource_type'> & { physical_resource_id: string },
) =>
  db.query(voidStatement`
    insert into formation_resources (id, formation_id, logical_id, resource_type, physical_resource_id, status, position, retain,
      prevent_destroy)
    values (${row.id}, ${formationId}, ${row.logical_id}, ${row.resource_type}, ${row.physical_resource_id}, 'created', ${row.position},
      ${row.retain}, ${row.prevent_destroy})
    on conflict (id) do update set physical_resource_id = excluded.physical_resource_id, status = excluded.status,
      retain = excluded.retain, prevent_destroy = excluded.prevent_destroy, applied = '{}', shown = '{}', hashes = '{}',
      attributes = null`)

export type NewEvent = Omit<FormationEvent, 'timestamp'>

/** Selects the operation of a claim and locks its work item; null if the claim is lost. */
export const claimedOperation = ({ entity, id, claims }: WorkClaim): Fragment => sql.fragment`(
  select id from formation_attempts
  where formation_id = ${entity} and id = ${id} and claims = ${claims} and state = 'running' for no key update)`

/**
 * Returns the statement that inserts events of a claimed operation. It fails if the claim is lost: see `isClaimLost`. `from`
 * is the number of the first event.
 */
export const insertEvents = (
  operation: Fragment,
  from: number,
  events: readonly NewEvent[],
  guard: Fragment = sql.fragment`true`,
): Fragment =>
  sql.fragment`
    insert into formation_events (operation_id, seq, logical_id, resource_type, action, status, physical_resource_id, error)
    select ${operation}, seq, logical_id, resource_type, action, status, physical_resource_id, error::jsonb
    from ${sql.unnest(
      events.map((event, index) => [
        from + index,
        event.logical_id,
        event.resource_type,
        event.action,
        event.status,
        event.physical_resource_id,
        event.error && JSON.stringify(event.error),
      ]),
      ['int4', 'text', 'text', 'text', 'text', 'text', 'text'],
    )} as n (seq, logical_id, resource_type, action, status, physical_resource_id, error)
    where ${guard}`

/** Whether a statement failed because the claim on the operation is lost. */
export const isClaimLost = (error: unknown): boolean =>
  (error instanceof NotNullIntegrityConstraintViolationError && error.table === 'formation_events') ||
  (error instanceof UniqueIntegrityConstraintViolationError && error.constraint === 'formation_events_pkey')

const FormationEventRow = z.strictObject({ ...FormationEvent.shape, seq: z.int() })
export type FormationEventRow = z.output<typeof FormationEventRow>

const eventRows = sql.type(FormationEventRow)

/** Lists events of an operation after a number, in order. By the primary key. */
export const listEventsAfter = (
  db: Queryable,
  operationId: string,
  after: number,
): Promise<readonly FormationEventRow[]> =>
  db.any(eventRows`
    select created_at as timestamp, logical_id, resource_type, action, status, physical_resource_id, error, seq
    from formation_events where operation_id = ${operationId} and seq > ${after} order by seq`)

export const OperationRow = z.strictObject({
  id: z.string(),
  formation_id: z.string(),
  operation_type: z.enum(OPERATION_TYPES),
  status: z.enum(OPERATION_STATUSES),
  plan: z.array(PlanChange).nullable(),
  error: RecordedFailure.nullable(),
  sealed_parameters: z.string().nullable(),
  sealed_answer: z.string().nullable(),
  force_conflicts: z.boolean(),
  created_at: z.string(),
  updated_at: z.string(),
})
export type OperationRow = z.output<typeof OperationRow>
const operationRows = sql.type(OperationRow)
const OPERATION = sql.fragment`id, formation_id, operation_type, status, plan, error, sealed_parameters, sealed_answer, force_conflicts, created_at, updated_at`

export const findOperation = (db: Queryable, id: string): Promise<OperationRow | null> =>
  db.maybeOne(operationRows`select ${OPERATION} from formation_operations where id = ${id}`)

export const insertOperation = (
  db: Queryable,
  row: Pick<OperationRow, 'id' | 'formation_id' | 'operation_type' | 'plan' | 'sealed_parameters' | 'force_conflicts'>,
) =>
  db.query(voidStatement`
    insert into formation_operations (id, formation_id, operation_type, status, plan, sealed_parameters, force_conflicts)
    values (${row.id}, ${row.formation_id}, ${row.operation_type}, 'pending', ${row.plan && JSON.stringify(row.plan)}::json,
      ${row.sealed_parameters}, ${row.force_conflicts})`)

/** Updates the status of an operation. Deletes its parameters when it ends. */
export const updateOperation = (
  db: Queryable,
  id: string,
  values: Pick<OperationRow, 'status' | 'error'> & { sealed_answer?: string | null },
) =>
  db.query(voidStatement`
    update formation_operations set status = ${values.status}, error = ${jsonb(values.error)}, updated_at = now(),
      sealed_answer = ${values.sealed_answer ?? null}
      ${values.status === 'running' ? sql.fragment`` : sql.fragment`, sealed_parameters = null`}
    where id = ${id}`)

/** Returns the statement that stores the sealed one-time values of an active operation. */
export const storeSealedAnswer = (id: string, sealed: string | null, guard: Fragment): Fragment =>
  sql.fragment`update formation_operations set sealed_answer = ${sealed} where id = ${id} and ${guard}`

const answerRow = sql.type(z.strictObject({ sealed_answer: z.string() }))

/** Returns and deletes the sealed one-time values of an operation; null if there are none. */
export const consumeSealedAnswer = (db: Queryable, id: string): Promise<string | null> =>
  db.maybeOneFirst(answerRow`
    with taken as (select id, sealed_answer from formation_operations where id = ${id} and sealed_answer is not null for update)
    update formation_operations o set sealed_answer = null from taken where o.id = taken.id returning taken.sealed_answer`)

/** Columns of operations with their events, for lists. */
export const operationColumns = sql.fragment`t.id, t.operation_type, t.status, t.plan, t.error, t.created_at, t.updated_at,
  (select coalesce(json_agg(json_build_object('timestamp', e.created_at, 'logical_id', e.logical_id, 'resource_type', e.resource_type,
     'action', e.action, 'status', e.status, 'physical_resource_id', e.physical_resource_id, 'error', e.error) order by e.seq), '[]')
   from formation_events e where e.operation_id = t.id) as events`

/** Approximate size of an operation with its events in a response: 300 bytes per event without its error. */
export const operationBytes = sql.fragment`coalesce(octet_length(t.plan::text), 0)
  + (select coalesce(sum(300 + coalesce(octet_length(e.error::text), 0)), 0) from formation_events e where e.operation_id = t.id)`

export const presentOperation = (
  { id, operation_type, status, plan, error, created_at, updated_at }: OperationRow,
  events: readonly FormationEventRow[],
): FormationOperation => ({
  id,
  operation_type,
  status,
  plan,
  events: events.map(({ seq: _seq, ...event }) => event),
  error,
  created_at,
  updated_at,
})

/** Selects the project of a row with a `formation_id`. */
export const projectOfFormation = sql.fragment`(select f.project_id from formations f where f.id = formation_id)`

/** Write-only values of stored templates, and parameters and one-time values of operations. */
export const sealedFormationColumns = [
  sealedColumn({ table: 'formations', column: 'sealed_values', kind: 'formation' }),
  ...['sealed_parameters', 'sealed_answer'].map(column =>
    sealedColumn({
      table: 'formation_operations',
      column,
      kind: `formation_operation_${column}`,
      project: projectOfFormation,
    }),
  ),
]
