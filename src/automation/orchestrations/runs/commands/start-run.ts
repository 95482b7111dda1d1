import {
  notDeleted,
  type OrchestrationRow,
  orchestrationVersions,
} from '#automation/orchestrations/definition/model.ts'
import { valueProblems } from '#automation/orchestrations/definition/schemas.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import type { Services } from '#core/base/services.ts'
import { joiningContext } from '#core/base/telemetry.ts'
import { sql } from '#core/db/sql.ts'
import { narrowAuthority } from '#core/iam/authority.ts'
import type { CallerDefinition, PrincipalRecord } from '#core/iam/caller.ts'
import type { Outbox, Tx } from '#core/writes/writer.ts'
import { lockUnpaused } from '#identity/projects/pause.ts'
import { sealRunContext } from '../engine/context.ts'
import { jsonBytes, MAX_RUN_INPUT_BYTES } from '../engine/run-state.ts'
import { presentRun, type RunRow, runKind } from '../model.ts'
import { runQueue } from '../queue.ts'
import { runInsert } from '../store.ts'

/** Options of a new run. */
type RunStart = {
  /** ID chosen by a caller that already subscribed to the run. */
  id?: string
  orchestration: Pick<OrchestrationRow, 'id' | 'project_id' | 'version'>
  /** Default: the current version. */
  version?: number
  /**
   * Definition whose author bounds the permissions of the run: the executed version, or the playbook compiled to it.
   */
  definition: CallerDefinition
  input: Record<string, unknown> | null
  metadata?: Record<string, unknown> | null
  tool_context?: Record<string, string> | null
  guardrail_context?: Record<string, unknown> | null
  /** Lifetime in seconds. */
  expires_in?: number | null
  authority: PrincipalRecord
  /** Name of the driver. */
  driver?: string | null
  /** Permission required whenever the run acts. Default: the permission to start it. */
  permission?: RunRow['permission']
  trigger?: { id: string; firing_id: string | null } | null
  /** Task whose dispatch starts the run. */
  task_id?: string | null
  /** Source of the turn that starts the run. */
  source?: string | null
  /** Whether the caller waits for the run. */
  awaited?: boolean
  parent?: { run: Pick<RunRow, 'id' | 'root_id' | 'run_depth'>; node_id: string; execution_id: string; index: number }
}

type InputTarget = Pick<OrchestrationRow, 'project_id' | 'input_schema'>

/**
 * Refuses an input of more than 1 MiB.
 * @throws VALIDATION_FAILED
 */
export function requireSize(input: unknown): void {
  if (jsonBytes(input) > MAX_RUN_INPUT_BYTES)
    raiseInvalid({ code: 'TOO_BIG', path: 'input', message: 'must be at most 1 MiB of JSON' })
}

/** Validates an input against the input_schema of a version; returns problems with paths below `input`. */
export const inputProblems = (services: Services, { project_id, input_schema }: InputTarget, input: unknown) =>
  valueProblems(services, project_id, input_schema, input ?? {}, ['input', 'input_schema'])

/** Builds the row of a new run. */
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
    source: start.source ?? null,
    awaited: start.awaited ?? false,
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
    trace_context: joiningContext(project_id),
  }
}

/** Writes new runs with their events and first messages. */
export function insertRuns(outbox: Outbox, runs: readonly RunRow[]): void {
  outbox.alongside(guard => runInsert(runs, guard))
  for (const run of runs) addStartEffects(outbox, run)
}

function addStartEffects(outbox: Outbox, run: RunRow): void {
  outbox.emit(runKind, 'started', run, { data: { ...presentRun(run), node_executions: [] } })
  outbox.send(runQueue, { run_id: run.id, project_id: run.project_id })
}

/**
 * Writes a queued run with its first message in the caller's transaction. The input must be validated.
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

type StartGuard = {
  project_id: string | null
  orchestration_id: string | null
  paused_at: string | null
  pause_reason: string | null
}

/**
 * Starts a run in one statement, which saves a round trip. `addEffects` adds the audit entry and the stored response. The
 * version must exist.
 * @throws PROJECT_PAUSED, ORCHESTRATION_NOT_FOUND if it was deleted in the meantime
 */
export async function startRunInOneStatement(
  services: Services,
  start: RunStart,
  addEffects: (outbox: Outbox, run: RunRow) => void,
): Promise<RunRow> {
  const run = buildRunRow(services, start)
  const found = await services.writeOne<StartGuard>(outbox => {
    addStartEffects(outbox, run)
    addEffects(outbox, run)
    const guard = sql.fragment`exists (select from project where paused_at is null) and exists (select from orchestration)`
    return {
      ctes: [
        sql.fragment`project as (
          select id, paused_at, pause_reason from projects where id = ${run.project_id} for share)`,
        sql.fragment`orchestration as (
          select id from orchestrations t where t.id = ${run.orchestration_id} and ${notDeleted} for key share)`,
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
