import { type Problem, raise, raiseInvalid } from '../core/api/errors.ts'
import { newId } from '../core/api/ids.ts'
import type { Tx } from '../core/db/writer.ts'
import { type Caller, principalRecord } from '../core/iam/caller.ts'
import type { Services } from '../core/process/services.ts'
import { overwritesOf, withOverwrites } from './conflicts.ts'
import { importersOf, importsFor, keepImports, noOutput } from './imports.ts'
import { liveResources } from './live.ts'
import { BUSY, type DeniedAction, type FormationRow, formationKind, type PlanChange } from './model.ts'
import {
  deniedActions,
  deniedDormant,
  listDestroyed,
  type Plan,
  parentsOfPlan,
  planKnownTo,
  planOf,
  planProblems,
  shownPlan,
} from './plan.ts'
import { formationQueue } from './queue.ts'
import { authoredForm, sealParameters, sealValues, withholdSecrets } from './sealed.ts'
import type { ResourceStep } from './step.ts'
import {
  type DeployCredential,
  insertOperation,
  insertOperationWork,
  type TrackedRow,
  trackedResources,
} from './store.ts'
import { type Compilation, type CompiledTemplate, compileTemplate } from './template/compile.ts'
import { expressionsIn } from './template/expressions.ts'
import { propertyIn } from './template/properties.ts'
import { findType } from './types/find.ts'
import { validateHandled } from './types/handler.ts'

/** Checks of a request before a worker runs its operation: everything that can be refused is refused here. */

export type DeployRequest = {
  /** Null for the stored template. */
  template: unknown
  parameters: Record<string, string>
}

/** Raises VALIDATION_FAILED with the problems of a template, FORMATION_MISSING_PARAMETERS. */
function usable({ compiled, problems, missing }: Compilation): CompiledTemplate {
  if (!compiled) return raiseInvalid(problems)
  if (missing.length > 0)
    raise('FORMATION_MISSING_PARAMETERS', {
      message: `The template needs values for ${missing.slice(0, 20).join(', ')}`,
      meta: { missing_parameters: missing },
    })
  return compiled
}

/** Raises FORMATION_INVALID_METADATA for annotations that hold expressions. */
export function checkFormationMetadata(metadata: unknown): void {
  const paths = expressionsIn(metadata, 'metadata').map(({ path }) => path)
  if (paths.length > 0)
    raise('FORMATION_INVALID_METADATA', {
      message: `${paths[0]} is an expression, which only templates may hold`,
      meta: { paths },
    })
}

/** Raises FORMATION_OPERATION_IN_PROGRESS. */
export function refuseBusy({ status, operation_id, id }: FormationRow): void {
  if (BUSY.includes(status))
    raise('FORMATION_OPERATION_IN_PROGRESS', {
      message: `The operation ${operation_id} of ${id} runs`,
      meta: { operation_id },
    })
}

export type PreparedDeploy = {
  compiled: CompiledTemplate
  plan: Plan
  /** What the caller lacks to deploy the template with these parameters, and to leave it to others. */
  denied: DeniedAction[]
  changes: PlanChange[]
  tracked: readonly TrackedRow[]
}

/** Reads a template and compares it with what there is. Raises what refuses it. */
export async function prepareDeploy(
  services: Services,
  caller: Caller,
  projectId: string,
  formation: FormationRow | null,
  { template, parameters }: DeployRequest,
): Promise<PreparedDeploy> {
  const { pool } = services
  const tracked = formation ? await trackedResources(pool, formation.id) : []
  const existing = formation && new Set(tracked.flatMap(row => (row.physical_resource_id ? [row.logical_id] : [])))
  const given = template ?? (formation ? authoredForm(services, formation) : null)
  const compiled = usable(await compileTemplate(services, given, { parameters, existing }))
  const imports = await importsFor(pool, caller, projectId, compiled)
  if (imports.denied.length > 0) raiseInvalid(imports.denied.map(noOutput))
  const plan = await planOf(services, pool, compiled, tracked, { projectId, imports: imports.values })
  const refused = await handledProblems(services, plan.steps)
  if (refused.length > 0) raiseInvalid(refused)
  const known = planKnownTo(
    caller,
    plan,
    projectId,
    ({ declared: { properties } }, name) => template != null || expressionsIn(properties[name]).length > 0,
  )
  const changes = withOverwrites(
    shownPlan(services, caller, known, projectId),
    await overwritesOf(pool, projectId, plan),
  )
  const denied = deniedActions(services, caller, known, projectId)
  if (template != null) denied.push(...deniedDormant(caller, compiled, projectId))
  return { compiled, plan, denied, changes, tracked }
}

/** Problems that the handlers of registered types report, without those of properties whose values are not known yet. */
export async function handledProblems(services: Services, steps: readonly ResourceStep[]): Promise<Problem[]> {
  const problems: Problem[] = []
  for (const { declared, desired } of steps) {
    const { type, logical_id } = declared
    if (!type.registered) continue
    for (const problem of await validateHandled(services, type.registered, logical_id, desired))
      if (expressionsIn(desired[propertyIn(problem.path)]).length === 0)
        problems.push({ ...problem, path: `resources.${logical_id}.properties.${problem.path}` })
  }
  return problems
}

/** Raises what refuses a plan: what may not be destroyed, what the caller lacks. */
export function refuseForbidden({ plan, denied }: PreparedDeploy): void {
  const problems = planProblems(plan)
  if (problems.length > 0) raiseInvalid(problems)
  refuseDenied(denied)
}

/** Raises FORBIDDEN with the actions that the caller lacks. */
export function refuseDenied(denied_actions: readonly DeniedAction[]): void {
  if (denied_actions.length > 0)
    raise('FORBIDDEN', {
      message: `The caller lacks ${[...new Set(denied_actions.map(({ action }) => action))].slice(0, 20).join(', ')}`,
      meta: { denied_actions },
    })
}

/** Outputs that others take from a formation and that its template no longer has. Raises FORMATION_HAS_DEPENDENTS. */
export async function keepOutputs(tx: Tx, { id }: FormationRow, outputs: readonly string[]): Promise<void> {
  const importers = await importersOf(tx, id, outputs)
  if (importers.length > 0)
    raise('FORMATION_HAS_DEPENDENTS', {
      message: `${importers[0].name} imports the output ${importers[0].output}`,
      meta: { importers: importers.map(({ formation_id, name, output }) => ({ formation_id, name, output })) },
    })
}

const credentialOf = ({ credential: { type, id }, project_id }: Caller): DeployCredential => ({
  type,
  id,
  bound: project_id !== null,
})

/** Inserts an operation for the workers, with the permissions of the caller. */
export async function enqueueOperation(
  tx: Tx,
  services: Services,
  caller: Caller,
  formation: Pick<FormationRow, 'id' | 'project_id'>,
  operation: {
    id: string
    operation_type: 'create' | 'update' | 'delete'
    plan: PlanChange[] | null
    parameters: Record<string, string>
    force_conflicts?: boolean
  },
): Promise<void> {
  const { id, operation_type, plan, parameters, force_conflicts = true } = operation
  const { project_id } = formation
  const sealed_parameters = sealParameters(services, id, project_id, parameters)
  await insertOperation(tx, {
    id,
    formation_id: formation.id,
    operation_type,
    plan,
    sealed_parameters,
    force_conflicts,
  })
  await insertOperationWork(tx, formation.id, id, principalRecord(caller), credentialOf(caller))
  tx.send(formationQueue, { formation_id: formation.id, operation_id: id, project_id })
}

/** Inserts a formation and enqueues its first deploy. */
export async function addFormation(
  tx: Tx,
  services: Services,
  caller: Caller,
  projectId: string,
  given: {
    id: string
    name: string
    metadata?: unknown
    termination_protection?: boolean
    parameters: Record<string, string>
  },
  { compiled, changes }: PreparedDeploy,
): Promise<FormationRow> {
  const { id, name, metadata = null, termination_protection = false, parameters } = given
  const operation_id = newId('form_op')
  const { template, values } = withholdSecrets(services, compiled.template)
  const row = await formationKind.insert(tx, {
    id,
    project_id: projectId,
    name,
    status: 'creating',
    template,
    sealed_values: sealValues(services, id, projectId, values),
    metadata: metadata as never,
    termination_protection,
    operation_id,
  })
  await keepImports(tx, projectId, id, compiled)
  await enqueueOperation(tx, services, caller, row, {
    id: operation_id,
    operation_type: 'create',
    plan: changes,
    parameters,
  })
  return row
}

/** Changes the template of a formation and has a worker apply it, while nothing else does. Raises what refuses it now. */
export async function changeFormation(
  tx: Tx,
  services: Services,
  caller: Caller,
  seen: FormationRow,
  given: {
    metadata?: unknown
    termination_protection?: boolean
    parameters: Record<string, string>
    force_conflicts?: boolean
  },
  { compiled, changes }: PreparedDeploy,
): Promise<FormationRow> {
  const stored = await formationKind.lock(tx, seen.id)
  refuseBusy(stored)
  const { operation_id: last } = stored
  if (last !== seen.operation_id)
    raise('FORMATION_OPERATION_IN_PROGRESS', {
      message: `The operation ${last} came in between`,
      meta: { operation_id: last },
    })
  await keepOutputs(tx, stored, Object.keys(compiled.outputs))
  const operation_id = newId('form_op')
  const { template, values } = withholdSecrets(services, compiled.template)
  const { metadata, termination_protection, parameters, force_conflicts } = given
  const row = await formationKind.update(tx, stored.id, {
    template,
    sealed_values: sealValues(services, stored.id, stored.project_id, values),
    status: 'updating',
    operation_id,
    ...(metadata === undefined ? {} : { metadata: metadata as never }),
    ...(termination_protection === undefined ? {} : { termination_protection }),
  })
  await keepImports(tx, row.project_id, row.id, compiled)
  await enqueueOperation(tx, services, caller, row, {
    id: operation_id,
    operation_type: 'update',
    plan: changes,
    parameters,
    force_conflicts,
  })
  return row
}

/** Enqueues the delete of a formation. Raises what refuses it. */
export async function deleteFormation(tx: Tx, services: Services, caller: Caller, id: string): Promise<FormationRow> {
  const stored = await formationKind.lock(tx, id)
  refuseBusy(stored)
  if (stored.termination_protection)
    raise('FORMATION_PROTECTED', { message: `${id} is protected from being deleted`, meta: { id } })
  await keepOutputs(tx, stored, [])
  const tracked = await trackedResources(tx, id)
  const kept = tracked
    .filter(row => row.prevent_destroy && !row.retain)
    .map(({ logical_id }) => listDestroyed(logical_id))
  if (kept.length > 0) raiseInvalid(kept)
  const operation_id = newId('form_op')
  const row = await formationKind.update(tx, id, { status: 'deleting', operation_id })
  await enqueueOperation(tx, services, caller, row, {
    id: operation_id,
    operation_type: 'delete',
    plan: null,
    parameters: {},
  })
  return row
}

/** Raises FORBIDDEN with the deletes that the caller lacks. */
export async function refuseForbiddenTeardown(
  services: Services,
  caller: Caller,
  formation: FormationRow,
): Promise<void> {
  const { pool } = services
  const tracked = await trackedResources(pool, formation.id)
  // What handlers have needs no action of its own.
  const own = tracked.filter(({ resource_type }) => findType(services, resource_type)?.registered === null)
  const { project_id } = formation
  const live = await liveResources(services, pool, own, project_id)
  const teardown = { steps: [], removed: [...tracked].reverse(), live }
  const parents = await parentsOfPlan(services, pool, teardown, project_id)
  refuseDenied(deniedActions(services, caller, { ...teardown, parents }, project_id))
}
