import { z } from 'zod'
import { selectList } from '#core/api/kind.ts'
import { countStatement, type Fragment, idStatement, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { ExecutionRow, PlaybookStepRow } from './model.ts'

const columns = selectList(Object.keys(ExecutionRow.shape))
const stepColumns = selectList(Object.keys(PlaybookStepRow.shape))
const executionRow = sql.type(ExecutionRow)
const stepRow = sql.type(PlaybookStepRow)

/** Active statuses, spelled as in the condition of index playbook_executions_active. */
const ACTIVE_STATUSES = sql.fragment`('queued', 'running', 'waiting')`

const executionRefRow = sql.type(z.strictObject({ id: z.string(), case_id: z.string() }))

/** Total bytes of input, output and metadata up to which a list includes them. They may have up to 5 MiB. */
const LISTED_BYTES = 128 * 1024

/** Columns of executions in lists: without the definition, and without input, output and metadata if they are large. */
export const executionListColumns: Fragment = (() => {
  const bytes = ['input', 'output', 'metadata'].map(
    name => sql.fragment`coalesce(octet_length(t.${sql.identifier([name])}::text), 0)`,
  )
  const ifSmall = (name: string) => sql.fragment`
    case when ${sql.join(bytes, sql.fragment` + `)} <= ${LISTED_BYTES} then t.${sql.identifier([name])} end`
  return selectList(Object.keys(ExecutionRow.shape), {
    input: ifSmall('input'),
    output: ifSmall('output'),
    metadata: ifSmall('metadata'),
    definition: sql.fragment`null::json`,
  })
})()

/** Returns the ids of the execution that a run drives and of its case. By playbook_executions_run. */
export const findExecutionOfRun = (db: Queryable, runId: string) =>
  db.maybeOne(executionRefRow`select id, case_id from playbook_executions where orchestration_run_id = ${runId}`)

/** Locks an execution. Requires the lock of its case. */
export const lockExecution = (db: Queryable, id: string): Promise<ExecutionRow | null> =>
  db.maybeOne(executionRow`select ${columns} from playbook_executions t where t.id = ${id} for update of t`)

/** Lists the executions of a case, oldest first, or one of them. By playbook_executions_case. */
export const listCaseExecutions = (
  db: Queryable,
  caseId: string,
  executionId: string | null,
): Promise<readonly ExecutionRow[]> =>
  db.any(executionRow`
    select ${columns} from playbook_executions t
    where t.case_id = ${caseId} and (${executionId}::text is null or t.id = ${executionId}) order by t.created_at, t.id`)

const bytesRow = sql.type(z.object({ bytes: z.coerce.number() }))

/**
 * Returns the size of the executions of a case, or of one, with steps and row overhead. By playbook_executions_case.
 */
export const executionBytes = (db: Queryable, caseId: string, executionId: string | null): Promise<number> =>
  db.oneFirst(bytesRow`
    select coalesce(sum(2048 + octet_length(t.definition::text) + octet_length(t.input::text)
      + coalesce(octet_length(t.metadata::text), 0) + coalesce(octet_length(t.output::text), 0) + s.bytes), 0) as bytes
    from playbook_executions t cross join lateral (
      select coalesce(sum(1024 + coalesce(octet_length(s.input::text), 0) + coalesce(octet_length(s.output::text), 0)
        + coalesce(octet_length(s.note), 0)), 0) as bytes
      from playbook_execution_steps s where s.execution_id = t.id) s
    where t.case_id = ${caseId} and (${executionId}::text is null or t.id = ${executionId})`)

/** Lists the steps of an execution in playbook order. */
export const listSteps = (db: Queryable, executionId: string): Promise<readonly PlaybookStepRow[]> =>
  db.any(stepRow`
    select ${stepColumns} from playbook_execution_steps t where t.execution_id = ${executionId} order by t.position`)

/** Returns the CTE that inserts or updates an execution. Requires the row lock. */
export const executionWrite = (row: ExecutionRow, guard: Fragment): Fragment => {
  const names = Object.keys(ExecutionRow.shape)
  return sql.fragment`
    insert into playbook_executions as t (${identifierList(names)})
    select ${identifierList(names, 'r')} from json_populate_record(null::playbook_executions, ${JSON.stringify(row)}::json) r
    where ${guard}
    on conflict (id) do update set ${sql.join(
      names
        .filter(name => !IMMUTABLE_COLUMNS.includes(name))
        .map(name => sql.fragment`${sql.identifier([name])} = ${sql.identifier(['excluded', name])}`),
      sql.fragment`, `,
    )}`
}
const IMMUTABLE_COLUMNS = [
  'id',
  'project_id',
  'case_id',
  'playbook_id',
  'playbook_version',
  'definition',
  'input',
  'created_at',
]

/** Returns the CTE that inserts or updates steps. */
export const stepsWrite = (rows: readonly PlaybookStepRow[], guard: Fragment): Fragment => {
  const names = Object.keys(PlaybookStepRow.shape)
  return sql.fragment`
    insert into playbook_execution_steps as t (${identifierList(names)})
    select ${identifierList(names, 'r')}
    from json_populate_recordset(null::playbook_execution_steps, ${JSON.stringify(rows)}::json) r where ${guard}
    on conflict (execution_id, key) do update set ${sql.join(
      names
        .filter(name => name !== 'execution_id' && name !== 'key')
        .map(name => sql.fragment`${sql.identifier([name])} = ${sql.identifier(['excluded', name])}`),
      sql.fragment`, `,
    )}`
}

const identifierList = (names: readonly string[], from?: string): Fragment =>
  sql.fragment`${sql.join(
    names.map(name => sql.identifier(from ? [from, name] : [name])),
    sql.fragment`, `,
  )}`

/** Inserts or updates an execution and steps in separate statements. */
export async function writeExecution(
  db: Queryable,
  row: ExecutionRow,
  steps: readonly PlaybookStepRow[],
): Promise<void> {
  await db.query(voidStatement`${executionWrite(row, sql.fragment`true`)}`)
  if (steps.length > 0) await db.query(voidStatement`${stepsWrite(steps, sql.fragment`true`)}`)
}

/** Counts the active executions of a playbook. By playbook_executions_playbook. */
export const countActiveExecutions = (db: Queryable, playbookId: string): Promise<number> =>
  db.oneFirst(countStatement`
    select count(*) as count from playbook_executions where playbook_id = ${playbookId} and status in ${ACTIVE_STATUSES}`)

/** Lists the ids of all runs of the executions of a case. By playbook_executions_case. */
export const listCaseRunIds = (db: Queryable, caseId: string): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    select unnest(e.previous_orchestration_run_ids || e.orchestration_run_id) as id
    from playbook_executions e where e.case_id = ${caseId}`)

/** Returns the id of the run that a node execution started. By orchestration_runs_parent. */
export const findChildRunId = (db: Queryable, runId: string, attemptId: string): Promise<string | null> =>
  db.maybeOneFirst(idStatement`
    select id from orchestration_runs where parent_id = ${runId} and parent_execution_id = ${attemptId} limit 1`)

const OverdueExecution = z.strictObject({
  id: z.string(),
  case_id: z.string(),
  project_id: z.string(),
  due_at: z.string(),
})
const overdueExecutionRow = sql.type(OverdueExecution)
export type OverdueExecution = z.output<typeof OverdueExecution>

/**
 * Lists executions with an unmarked overdue step, the longest overdue first. By playbook_execution_steps_due.
 * @param after the last entry of the previous page
 */
export const listOverdueExecutions = (
  db: Queryable,
  { after, limit }: { after: OverdueExecution | undefined; limit: number },
) =>
  db.any(overdueExecutionRow`
    select e.id, e.case_id, e.project_id, s.due_at
    from (
      select s.execution_id, s.due_at from playbook_execution_steps s
      where s.due_at < now() and s.status = 'waiting' and not s.overdue
        and ${after ? sql.fragment`(s.due_at, s.execution_id) > (${after.due_at}::timestamptz, ${after.id})` : sql.fragment`true`}
      order by s.due_at, s.execution_id limit ${limit}) s
    join playbook_executions e on e.id = s.execution_id
    order by s.due_at, e.id`)

/** Condition: a step is overdue and not marked. By playbook_execution_steps_due. */
export const hasOverdueSteps: Fragment = sql.fragment`exists (
  select from playbook_execution_steps where due_at < now() and status = 'waiting' and not overdue)`

const evidenceNameRow = sql.type(z.strictObject({ name: z.string(), kind: z.string() }))

/** Lists kind and name of the evidence of a step, without withdrawn evidence. By case_evidence_execution. */
export const listCapturedEvidence = (db: Queryable, executionId: string, key: string) =>
  db.any(evidenceNameRow`
    select distinct name, kind from case_evidence
    where playbook_execution_id = ${executionId} and step_key = ${key} and withdrawn_at is null`)

const stepRefRow = sql.type(z.strictObject({ execution_id: z.string(), key: z.string() }))

/**
 * Erases the input and output of turns from steps and from the output of their executions. Locks executions before
 * steps, as the engine does. Returns the erased steps. By playbook_execution_steps_generation.
 */
export async function eraseTurnSteps(db: Queryable, generationIds: readonly string[]) {
  const turns = sql.array([...generationIds], 'text')
  await db.query(voidStatement`
    select from playbook_executions
    where id in (select execution_id from playbook_execution_steps where generation_id = any(${turns})) order by id for update`)
  return db.any(stepRefRow`
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

/** Query for the ids of runs and all their descendants. */
export const runTreeIds = (ids: readonly string[]): Fragment => sql.fragment`
  with recursive tree as (
    select unnest(${sql.array([...ids], 'text')}) as id
    union
    select r.id from tree join orchestration_runs r on r.parent_id = tree.id)
  select id from tree`
