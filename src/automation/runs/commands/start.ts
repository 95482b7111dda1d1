import { raise, raiseInvalid } from '../../../core/api/errors.ts'
import { newId } from '../../../core/api/ids.ts'
import { sql } from '../../../core/db/sql.ts'
import type { Outbox, Tx } from '../../../core/db/writer.ts'
import { narrowAuthority } from '../../../core/iam/authority.ts'
import type { CallerDefinition, PrincipalRecord } from '../../../core/iam/caller.ts'
import { schemaChecks } from '../../../core/json-schema/checks.ts'
import type { Services } from '../../../core/process/services.ts'
import { lockUnpaused } from '../../../identity/projects/pause.ts'
import { type OrchestrationRow, orchestrationVersions } from '../../orchestrations/model.ts'
import { checkedValue } from '../../orchestrations/schemas.ts'
import { sealRunContext } from '../engine/context.ts'
import { jsonBytes, MAX_RUN_INPUT_BYTES } from '../engine/run-state.ts'
import { presentRun, type RunRow, runKind } from '../model.ts'
import { runQueue } from '../queue.ts'
import { runInsert } from '../store.ts'

/** What a run is started with. */
type RunStart = {
  /** Drawn before by a caller that already listens. */
  id?: string
  orchestration: Pick<OrchestrationRow, 'id' | 'project_id' | 'version'>
  /** Default: the live one. */
  version?: number
  /** What its author allows bounds the run: the version that it executes, or the playbook that this was compiled from. */
  definition: CallerDefinition
  input: Record<string, unknown> | null
  metadata?: Record<string, unknown> | null
  tool_context?: Record<string, string> | null
  guardrail_context?: Record<string, unknown> | null
  /** Seconds. */
  expires_in?: number | null
  authority: PrincipalRecord
  /** Name of the module that drives it. */
  driver?: string | null
  /** Asked for again whenever the run acts; default the right to start it. */
  permission?: RunRow['permission']
  trigger?: { id: string; firing_id: string | null } | null
  /** The task that it is dispatched for. */
  task_id?: string | null
  parent?: { run: Pick<RunRow, 'id' | 'root_id' | 'run_depth'>; node_id: string; execution_id: string; index: number }
}

const INPUT = ['input', 'input_schema'] as const

type Checked = Pick<OrchestrationRow, 'project_id' | 'input_schema'>

/** Raises VALIDATION_FAILED for an input that is too large to be kept. */
export function requireSize(input: unknown): void {
  if (jsonBytes(input) > MAX_RUN_INPUT_BYTES)
    raiseInvalid({ code: 'TOO_BIG', path: 'input', message: 'must be at most 1 MiB of JSON' })
}

/**
 * Why the input does not satisfy the input_schema of a version, as problems with paths below `input`; empty when it does.
 * Ask before the transaction: a check may wait for a thread.
 */
export const inputProblems = (services: Services, { project_id, input_schema }: Checked, input: unknown) =>
  checkedValue(
    project_id,
    input_schema,
    INPUT,
    async schema => (await schemaChecks(services).problems(schema, [input ?? {}]))[0],
  )

/** The same within a transaction. @throws RunFirst */
export const inputProblemsInTransaction = (services: Services, { project_id, input_schema }: Checked, input: unknown) =>
  checkedValue(project_id, input_schema, INPUT, schema =>
    schemaChecks(services).problemsInTransaction(schema, input ?? {}),
  )

/** The row of a new run. */
export function buildRunRow(services: Services, start: RunStart): RunRow {
  const { orchestration, parent } = start
  const id = start.id ?? newId(runKind.prefix)
  const { project_id } = orchestration
  const now = services.clock.now()
  const { tool_context = null, guardrail_context = null } = start
  const expires_at = start.expires_in == null ? null : new Date(now.getTime() + start.expires_in * 1000).toISOString()
  const at = now.toISOString()
  return {
    id,
    project_id,
    orchestration_id: orchestration.id,
    orchestration_version: start.version ?? orchestration.version,
    status: 'queued',
    revision: 1,
    input: start.input,
    metadata: start.metadata ?? null,
    ...sealRunContext(services, { id, project_id }, { tool_context, guardrail_context }),
    written: {},
    outcomes: {},
    active_nodes: [],
    required_actions: [],
    output: null,
    error: null,
    failed_node_id: null,
    steps: 0,
    rounds: 0,
    parent_id: parent?.run.id ?? null,
    parent_node_id: parent?.node_id ?? null,
    parent_execution_id: parent?.execution_id ?? null,
    parent_index: parent?.index ?? null,
    root_id: parent?.run.root_id ?? id,
    run_depth: parent ? parent.run.run_depth + 1 : 0,
    retry_of_run_id: null,
    trigger_id: start.trigger?.id ?? null,
    trigger_firing_id: start.trigger?.firing_id ?? null,
    task_id: start.task_id ?? null,
    trace_id: null,
    authority: narrowAuthority(start.authority, start.definition),
    permission: start.permission ?? { action: 'orchestrations:StartRun', kind: 'orchestration', id: orchestration.id },
    driver: start.driver ?? null,
    pause_requested_at: null,
    pause_reason: null,
    paused_with_project: false,
    wake_at: null,
    due_at: expires_at,
    expires_at,
    queued_at: at,
    started_at: null,
    completed_at: null,
    created_at: at,
    updated_at: at,
  }
}

/** Writes new runs with what follows from them: their events and first messages. */
export function insertRuns(outgoing: Outbox, runs: readonly RunRow[]): void {
  outgoing.alongside(guard => runInsert(runs, guard))
  for (const run of runs) follow(outgoing, run)
}

function follow(outgoing: Outbox, run: RunRow): void {
  outgoing.emit(runKind, 'started', run, { data: { ...presentRun(run), node_executions: [] } })
  outgoing.send(runQueue, { run_id: run.id, project_id: run.project_id })
}

/**
 * Writes a queued run with its first message inside the caller's transaction. The input has been checked.
 * @throws PROJECT_PAUSED, RESOURCE_NOT_FOUND (version)
 */
export async function startRun(
  tx: Tx,
  services: Services,
  start: Omit<RunStart, 'definition'> & { orchestration: OrchestrationRow },
): Promise<RunRow> {
  const { orchestration, version } = start
  await lockUnpaused(tx, orchestration.project_id)
  if (version !== undefined && version !== orchestration.version)
    await orchestrationVersions.get(tx, orchestration.id, version)
  const run = buildRunRow(services, {
    ...start,
    definition: await orchestrationVersions.definition(tx, orchestration, version),
  })
  insertRuns(tx, [run])
  return run
}

type Found = {
  project_id: string | null
  orchestration_id: string | null
  paused_at: string | null
  pause_reason: string | null
}

/**
 * The same as a change of its own, in one round trip; `note` adds what the request leaves behind. The version exists.
 * @throws PROJECT_PAUSED, ORCHESTRATION_NOT_FOUND where it was deleted meanwhile
 */
export async function startRunInOneStatement(
  services: Services,
  start: RunStart,
  note: (outgoing: Outbox, run: RunRow) => void,
): Promise<RunRow> {
  const run = buildRunRow(services, start)
  const found = await services.writeOne<Found>(outgoing => {
    follow(outgoing, run)
    note(outgoing, run)
    const guard = sql.fragment`exists (select from project where paused_at is null) and exists (select from orchestration)`
    return {
      ctes: [
        sql.fragment`project as (
          select id, paused_at, pause_reason from projects where id = ${run.project_id} for share)`,
        sql.fragment`orchestration as (select id from orchestrations where id = ${run.orchestration_id} for key share)`,
        sql.fragment`new_run as (${runInsert([run], guard)})`,
      ],
      guard,
      columns: sql.fragment`(select id from project) as project_id, (select id from orchestration) as orchestration_id,
        (select paused_at from project) as paused_at, (select pause_reason from project) as pause_reason`,
    }
  })
  const { project_id, orchestration_id, paused_at, pause_reason } = found
  if (project_id === null || orchestration_id === null)
    raise('ORCHESTRATION_NOT_FOUND', { meta: { id: run.orchestration_id } })
  if (paused_at !== null) raise('PROJECT_PAUSED', { meta: { project_id, pause_reason } })
  return run
}
