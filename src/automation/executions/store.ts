import { z } from 'zod'
import { selectList } from '../../core/api/kind.ts'
import { type Fragment, idStatement, type Queryable, sql, voidStatement } from '../../core/db/sql.ts'
import { ExecutionRow, PlaybookStepRow } from './model.ts'

const columns = selectList(Object.keys(ExecutionRow.shape))
const stepColumns = selectList(Object.keys(PlaybookStepRow.shape))
const execution = sql.type(ExecutionRow)
const step = sql.type(PlaybookStepRow)

/** Statuses of executions that are not over, in the words of playbook_executions_active. */
const ACTIVE = sql.fragment`('queued', 'running', 'waiting')`

const placed = sql.type(z.strictObject({ id: z.string(), case_id: z.string() }))

/** Bytes of the values of an execution in a list: input and output have up to 5 MiB. */
const LISTED_BYTES = 128 * 1024

/** The columns of executions in a list: values, unless they are large, and not what they follow. */
export const executionListColumns: Fragment = (() => {
  const bytes = ['input', 'output', 'metadata'].map(
    name => sql.fragment`coalesce(octet_length(t.${sql.identifier([name])}::text), 0)`,
  )
  const small = (name: string) => sql.fragment`
    case when ${sql.join(bytes, sql.fragment` + `)} <= ${LISTED_BYTES} then t.${sql.identifier([name])} end`
  return selectList(Object.keys(ExecutionRow.shape), {
    input: small('input'),
    output: small('output'),
    metadata: small('metadata'),
    definition: sql.fragment`null::json`,
  })
})()

/** The execution that a run drives, and its case. By playbook_executions_run. */
export const executionOfRun = (db: Queryable, runId: string) =>
  db.maybeOne(placed`select id, case_id from playbook_executions where orchestration_run_id = ${runId}`)

/** An execution under its lock; the caller holds its case. */
export const lockExecution = (db: Queryable, id: string): Promise<ExecutionRow | null> =>
  db.maybeOne(execution`select ${columns} from playbook_executions t where t.id = ${id} for update of t`)

/** The executions of a case, oldest first, or one of them. By playbook_executions_case. */
export const executionsOfCase = (
  db: Queryable,
  caseId: string,
  executionId: string | null,
): Promise<readonly ExecutionRow[]> =>
  db.any(execution`
    select ${columns} from playbook_executions t
    where t.case_id = ${caseId} and (${executionId}::text is null or t.id = ${executionId}) order by t.created_at, t.id`)

const sizes = sql.type(z.object({ bytes: z.coerce.number() }))

/** Bytes of executions of a case and of their steps, or of one, with what their rows take. By playbook_executions_case. */
export const bytesOfExecutions = (db: Queryable, caseId: string, executionId: string | null): Promise<number> =>
  db.oneFirst(sizes`
    select coalesce(sum(2048 + octet_length(t.definition::text) + octet_length(t.input::text)
      + coalesce(octet_length(t.metadata::text), 0) + coalesce(octet_length(t.output::text), 0) + s.bytes), 0) as bytes
    from playbook_executions t cross join lateral (
      select coalesce(sum(1024 + coalesce(octet_length(s.input::text), 0) + coalesce(octet_length(s.output::text), 0)
        + coalesce(octet_length(s.note), 0)), 0) as bytes
      from playbook_execution_steps s where s.execution_id = t.id) s
    where t.case_id = ${caseId} and (${executionId}::text is null or t.id = ${executionId})`)

/** The steps of an execution in their order. */
export const stepsOf = (db: Queryable, executionId: string): Promise<readonly PlaybookStepRow[]> =>
  db.any(step`
    select ${stepColumns} from playbook_execution_steps t where t.execution_id = ${executionId} order by t.position`)

/** The part of a statement that adds or changes an execution whose row the caller holds. */
export const executionWrite = (row: ExecutionRow, guard: Fragment): Fragment => {
  const names = Object.keys(ExecutionRow.shape)
  return sql.fragment`
    insert into playbook_executions as t (${list(names)})
    select ${list(names, 'r')} from json_populate_record(null::playbook_executions, ${JSON.stringify(row)}::json) r
    where ${guard}
    on conflict (id) do update set ${sql.join(
      names
        .filter(name => !FIXED.includes(name))
        .map(name => sql.fragment`${sql.identifier([name])} = ${sql.identifier(['excluded', name])}`),
      sql.fragment`, `,
    )}`
}
/** What never changes of an execution. */
const FIXED = ['id', 'project_id', 'case_id', 'playbook_id', 'playbook_version', 'definition', 'input', 'created_at']

/** The part of a statement that adds or changes steps. */
export const stepsWrite = (rows: readonly PlaybookStepRow[], guard: Fragment): Fragment => {
  const names = Object.keys(PlaybookStepRow.shape)
  return sql.fragment`
    insert into playbook_execution_steps as t (${list(names)})
    select ${list(names, 'r')}
    from json_populate_recordset(null::playbook_execution_steps, ${JSON.stringify(rows)}::json) r where ${guard}
    on conflict (execution_id, key) do update set ${sql.join(
      names
        .filter(name => name !== 'execution_id' && name !== 'key')
        .map(name => sql.fragment`${sql.identifier([name])} = ${sql.identifier(['excluded', name])}`),
      sql.fragment`, `,
    )}`
}

const list = (names: readonly string[], from?: string): Fragment =>
  sql.fragment`${sql.join(
    names.map(name => sql.identifier(from ? [from, name] : [name])),
    sql.fragment`, `,
  )}`

/** Writes an execution and steps of it at once. */
export async function writeExecution(
  db: Queryable,
  row: ExecutionRow,
  steps: readonly PlaybookStepRow[],
): Promise<void> {
  await db.query(voidStatement`${executionWrite(row, sql.fragment`true`)}`)
  if (steps.length > 0) await db.query(voidStatement`${stepsWrite(steps, sql.fragment`true`)}`)
}

const counted = sql.type(z.strictObject({ count: z.int() }))

/** How many executions of a playbook are not over. By playbook_executions_playbook. */
export const activeExecution = (db: Queryable, playbookId: string): Promise<number> =>
  db.oneFirst(counted`
    select count(*) as count from playbook_executions where playbook_id = ${playbookId} and status in ${ACTIVE}`)

/** The runs of the executions of a case. By playbook_executions_case. */
export const runIdsOf = (db: Queryable, caseId: string): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    select unnest(e.previous_orchestration_run_ids || e.orchestration_run_id) as id
    from playbook_executions e where e.case_id = ${caseId}`)

/** The runs that attempts of nodes started. By orchestration_runs_parent. */
export const runBelow = (db: Queryable, runId: string, attemptId: string): Promise<string | null> =>
  db.maybeOneFirst(idStatement`
    select id from orchestration_runs where parent_id = ${runId} and parent_execution_id = ${attemptId} limit 1`)

const Due = z.strictObject({ id: z.string(), case_id: z.string(), project_id: z.string(), due_at: z.string() })
const due = sql.type(Due)
export type Due = z.output<typeof Due>

/**
 * Executions with a step that has become overdue, the longest overdue first. By playbook_execution_steps_due.
 * @param after the step to go on behind
 */
export const overdueExecutions = (db: Queryable, { after, limit }: { after: Due | undefined; limit: number }) =>
  db.any(due`
    select e.id, e.case_id, e.project_id, s.due_at
    from (
      select s.execution_id, s.due_at from playbook_execution_steps s
      where s.due_at < now() and s.status = 'waiting' and not s.overdue
        and ${after ? sql.fragment`(s.due_at, s.execution_id) > (${after.due_at}::timestamptz, ${after.id})` : sql.fragment`true`}
      order by s.due_at, s.execution_id limit ${limit}) s
    join playbook_executions e on e.id = s.execution_id
    order by s.due_at, e.id`)

/** Whether a step has become overdue. By playbook_execution_steps_due. */
export const isAnyOverdue: Fragment = sql.fragment`exists (
  select from playbook_execution_steps where due_at < now() and status = 'waiting' and not overdue)`

const captured = sql.type(z.strictObject({ name: z.string(), kind: z.string() }))

/** What was captured for a step of an execution and is not withdrawn. By case_evidence_execution. */
export const capturedNames = (db: Queryable, executionId: string, key: string) =>
  db.any(captured`
    select distinct name, kind from case_evidence
    where playbook_execution_id = ${executionId} and step_key = ${key} and withdrawn_at is null`)

const erased = sql.type(z.strictObject({ execution_id: z.string(), key: z.string() }))

/**
 * Erases what turns were given by steps and said to them, in the steps and in what their executions came to. Takes the
 * execution before its steps, as the engine does. Returns the steps that had something of it. By playbook_execution_steps_generation.
 */
export async function eraseStepsOf(db: Queryable, generationIds: readonly string[]) {
  const turns = sql.array([...generationIds], 'text')
  await db.query(voidStatement`
    select from playbook_executions
    where id in (select execution_id from playbook_execution_steps where generation_id = any(${turns})) order by id for update`)
  return db.any(erased`
    with gone as (
      update playbook_execution_steps set input = null, output = null
      where generation_id = any(${turns}) and (input is not null or output is not null) returning execution_id, key),
    blanked as (
      update playbook_executions e set updated_at = now(), output = (
        select json_object_agg(o.key, case when g.key is null then o.value end order by o.place)
        from json_each(e.output) with ordinality as o (key, value, place) left join gone g on g.execution_id = e.id and g.key = o.key)
      where e.output is not null and e.id in (select execution_id from gone))
    select execution_id, key from gone`)
}

/** The runs of an execution, and all that are below them. */
export const runsOf = (ids: readonly string[]): Fragment => sql.fragment`
  with recursive tree as (
    select unnest(${sql.array([...ids], 'text')}) as id
    union
    select r.id from tree join orchestration_runs r on r.parent_id = tree.id)
  select id from tree`
