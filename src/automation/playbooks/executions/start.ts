import { moveCase, requireNoExecution, requireNotClosed } from '#automation/cases/change.ts'
import { type CaseRow, caseKind } from '#automation/cases/model.ts'
import type { CaseActor } from '#automation/cases/timeline.ts'
import { buildRunRow, insertRuns } from '#automation/orchestrations/runs/commands/start-run.ts'
import { type Problem, raiseInvalid } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import type { Services } from '#core/base/services.ts'
import type { PrincipalRecord } from '#core/iam/caller.ts'
import { lenientSchema, SchemaError, schemaChecks } from '#core/json-schema/checks.ts'
import { wireProblemsAtFields } from '#core/json-schema/problems.ts'
import type { Tx } from '#core/writes/writer.ts'
import { lockUnpaused } from '#identity/projects/pause.ts'
import type { PlaybookDefinition } from '../definition/definition.ts'
import type { PlaybookRow } from '../definition/model.ts'
import { MANAGER, playbookVersions } from '../definition/versions.ts'
import { type ExecutionRow, executionKind, PENDING_STEP, type PlaybookStepRow, presentExecution } from './model.ts'
import { writeExecution } from './store.ts'

export type ExecutionStart = {
  playbook: PlaybookRow
  /** Default: the live version. */
  version?: number
  input: Record<string, unknown>
  metadata: Record<string, unknown> | null
  tool_context: Record<string, string> | null
  authority: PrincipalRecord
  by: CaseActor
  trigger_id?: string | null
}

/** Permission that the authority of the run must keep: starting executions of the case. */
const permissionOf = (caseId: string) => ({ action: 'playbooks:StartExecution', kind: 'case', id: caseId })

/**
 * Starts a playbook execution on a case. The caller has locked the playbook against deletion.
 * @throws PROJECT_PAUSED, RESOURCE_NOT_FOUND, CASE_STATE_CONFLICT, PLAYBOOK_EXECUTION_CONFLICT, VALIDATION_FAILED
 */
export async function startExecution(
  tx: Tx,
  services: Services,
  caseId: string,
  start: ExecutionStart,
): Promise<{ row: ExecutionRow; steps: readonly PlaybookStepRow[]; case: CaseRow }> {
  const { playbook, input, authority, tool_context } = start
  const { project_id } = playbook
  await lockUnpaused(tx, project_id)
  const kase = await caseKind.lock(tx, caseId)
  requireNotClosed(kase)
  await requireNoExecution(tx, kase)
  const version = start.version ?? playbook.version
  const definition =
    version === playbook.version
      ? playbookVersions.configOf(playbook)
      : (await playbookVersions.get(tx, playbook.id, version)).config
  const problems = [
    ...(await inputSchemaProblems(services, project_id, definition.case_schema, kase.fields, 'case.fields')),
    ...(await inputSchemaProblems(services, project_id, definition.input_schema, input, 'input')),
  ]
  if (problems.length > 0) raiseInvalid(problems)
  const id = newId(executionKind.prefix)
  const run = buildRunRow(services, {
    orchestration: { id: playbook.orchestration_id, project_id, version },
    version,
    definition: await playbookVersions.definition(tx, playbook, version),
    input,
    metadata: { playbook_execution_id: id, case_id: caseId },
    tool_context,
    authority,
    permission: permissionOf(caseId),
    driver: MANAGER,
    trigger: start.trigger_id == null ? null : { id: start.trigger_id, firing_id: null },
  })
  const { row, steps } = buildExecution(id, run.id, kase, { ...start, version, definition }, run.created_at)
  await writeExecution(tx, row, steps)
  insertRuns(tx, [run])
  tx.emit(executionKind, 'started', row, { data: presentExecution(row, steps) })
  return {
    row,
    steps,
    case: await attachToCase(tx, kase, row, start.by, { execution_count: kase.execution_count + 1 }),
  }
}

/** Makes a started or retried execution the active execution of its case. */
export const attachToCase = (
  tx: Tx,
  kase: CaseRow,
  { id, playbook_id, playbook_version }: ExecutionRow,
  by: CaseActor,
  more: { execution_count?: number; retried?: true } = {},
): Promise<CaseRow> => {
  const { retried, ...counted } = more
  const data = { playbook_id, playbook_version, ...(retried ? { retried } : {}) }
  const values = { active_execution_id: id, outcome: null, outcome_note: null, resolved_at: null, ...counted }
  return moveCase(tx, kase, { status: 'in_progress', ...values }, by, {
    before: [{ kind: 'execution_started', data, playbook_execution_id: id }],
    playbook_execution_id: id,
  })
}

/** Validates a value against a schema. Returns problems with paths below `path`. */
export async function inputSchemaProblems(
  services: Services,
  project: string,
  schema: object | null,
  value: unknown,
  path: string,
): Promise<Problem[]> {
  if (schema === null) return []
  try {
    const [problems] = await schemaChecks(services).problems(lenientSchema(project, schema), [value])
    return wireProblemsAtFields(problems, path)
  } catch (error) {
    if (!(error instanceof SchemaError)) throw error
    return [{ code: 'INVALID_VALUE', path, message: error.message }]
  }
}

function buildExecution(
  id: string,
  orchestration_run_id: string,
  { id: case_id, project_id }: CaseRow,
  start: ExecutionStart & { version: number; definition: PlaybookDefinition },
  now: string,
): { row: ExecutionRow; steps: PlaybookStepRow[] } {
  const { playbook, definition, authority } = start
  const row: ExecutionRow = {
    id,
    project_id,
    case_id,
    playbook_id: playbook.id,
    playbook_name: playbook.name,
    playbook_version: start.version,
    definition,
    status: 'queued',
    input: start.input,
    metadata: start.metadata,
    current_step_key: null,
    waiting_on: null,
    outcome: null,
    output: null,
    error: null,
    orchestration_run_id,
    previous_orchestration_run_ids: [],
    trigger_id: start.trigger_id ?? null,
    started_by: { kind: authority.type, id: authority.id },
    pause_requested_at: null,
    pause_reason: null,
    event_wait: null,
    started_at: null,
    completed_at: null,
    created_at: now,
    updated_at: now,
  }
  const steps = definition.steps.map(
    ({ key, title, type }, position): PlaybookStepRow => ({
      execution_id: id,
      key,
      title,
      type,
      position,
      attempt: 0,
      attempts_before: 0,
      input: null,
      tool_id: null,
      ...PENDING_STEP,
    }),
  )
  return { row, steps }
}
