import { type Problem, raise, raiseInvalid } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import type { Services } from '#core/base/services.ts'
import { type Caller, principalRecord } from '#core/iam/caller.ts'
import type { Tx } from '#core/writes/writer.ts'
import { operationWork } from '../deploys/operate.ts'
import { type ImportedResource, resolveImportedResources, trackImported } from '../plans/adopt.ts'
import { type Compilation, type CompiledTemplate, compileTemplate } from '../plans/compile.ts'
import { findOverwrites, withOverwrites } from '../plans/conflicts.ts'
import { importProblem, listImporters, resolveImports, storeImports } from '../plans/imports.ts'
import { listLiveResources } from '../plans/live.ts'
import {
  buildPlan,
  deniedActions,
  deniedConditional,
  type Plan,
  planProblems,
  presentPlan,
  preventDestroyProblem,
  readPlanParents,
  redactPlan,
  refuseDenied,
} from '../plans/plan.ts'
import { authoredTemplate, sealParameters, sealValues, withholdSecrets } from '../plans/sealed.ts'
import type { ResourceStep } from '../plans/step.ts'
import { type DeniedAction, type FormationRow, formationKind, type PlanChange, refuseBusy } from '../records/model.ts'
import { type DeployCredential, insertOperation, insertOperationWork, listTrackedResources } from '../records/store.ts'
import { expressionsIn } from '../template/expressions.ts'
import { propertyWarnings } from '../types/built-in.ts'
import { findType } from '../types/find.ts'
import { validateWithHandler } from '../types/handler.ts'
import { propertyName } from '../types/properties.ts'

/** Validation and acceptance of requests: what can be refused is refused here, before a worker runs the operation. */

export type DeployRequest = {
  /** Null for the stored template. */
  template: unknown
  parameters: Record<string, string>
  /** IDs of existing resources to import, by logical ID. */
  import_resources?: Record<string, string>
}

/**
 * Returns the template of a compilation.
 * @throws VALIDATION_FAILED with the problems of the template, FORMATION_MISSING_PARAMETERS
 */
function requireCompiled({ compiled, problems, missing }: Compilation): CompiledTemplate {
  if (!compiled) return raiseInvalid(problems)
  if (missing.length > 0)
    raise('FORMATION_MISSING_PARAMETERS', {
      message: `Parameters without a value: ${missing.slice(0, 20).join(', ')}`,
      meta: { missing_parameters: missing },
    })
  return compiled
}

/** Raises FORMATION_INVALID_METADATA for metadata that contains an expression. */
export function checkFormationMetadata(metadata: unknown): void {
  const paths = expressionsIn(metadata, 'metadata').map(({ path }) => path)
  if (paths.length > 0)
    raise('FORMATION_INVALID_METADATA', {
      message: `${paths[0]} is an expression, which is allowed only in templates`,
      meta: { paths },
    })
}

export type PreparedDeploy = {
  compiled: CompiledTemplate
  plan: Plan
  /** Actions that the caller is not allowed, including the actions of resources with an unmet condition. */
  denied: DeniedAction[]
  changes: PlanChange[]
  imported: readonly ImportedResource[]
  /** Warnings about the resources that the deploy writes, with paths in the template. */
  warnings: Problem[]
}

/**
 * Compiles a template and plans its deploy.
 * @throws VALIDATION_FAILED, FORMATION_MISSING_PARAMETERS, FORMATION_HANDLER_FAILED, SECRET_NOT_DECRYPTABLE; for an import
 *   also RESOURCE_NOT_FOUND, FORBIDDEN
 */
export async function prepareDeploy(
  services: Services,
  caller: Caller,
  projectId: string,
  formation: FormationRow | null,
  { template, parameters, import_resources = {} }: DeployRequest,
): Promise<PreparedDeploy> {
  const { pool } = services
  const known = formation ? await listTrackedResources(pool, formation.id) : []
  const managed = known.flatMap(row => (row.physical_resource_id ? [row.logical_id] : []))
  const importing = Object.keys(import_resources)
  const existing = formation || importing.length > 0 ? new Set([...managed, ...importing]) : null
  const source = template ?? (formation ? authoredTemplate(services, formation) : null)
  const compiled = requireCompiled(await compileTemplate(services, source, { parameters, existing, tenant: projectId }))
  const imports = await resolveImports(pool, caller, projectId, compiled)
  if (imports.denied.length > 0) raiseInvalid(imports.denied.map(importProblem))
  const imported = await resolveImportedResources(
    { services, db: pool, caller, projectId },
    known,
    compiled.declared,
    import_resources,
  )
  const replaced = new Set(imported.map(({ row }) => row.id))
  const tracked = [...known.filter(({ id }) => !replaced.has(id)), ...imported.map(({ row }) => row)]
  const plan = await buildPlan(services, pool, compiled, tracked, { projectId, imports: imports.values })
  const refused = await handlerProblems(services, plan.steps)
  if (refused.length > 0) raiseInvalid(refused)
  const shown = redactPlan(
    caller,
    plan,
    projectId,
    ({ declared: { properties } }, name) => template != null || expressionsIn(properties[name]).length > 0,
  )
  const changes = withOverwrites(
    presentPlan(services, caller, shown, projectId),
    await findOverwrites(pool, projectId, plan),
  )
  const denied = deniedActions(services, caller, shown, projectId)
  if (template != null) denied.push(...deniedConditional(caller, compiled, projectId))
  const warnings = plan.steps.flatMap(({ action, declared: { logical_id, type }, desired }) =>
    action === 'no-op' || type.registered
      ? []
      : propertyWarnings(services, type, desired, `resources.${logical_id}.properties`),
  )
  return { compiled, plan, denied, changes, imported, warnings }
}

/** Returns the problems that handlers of registered types report for properties whose values are known. */
export async function handlerProblems(services: Services, steps: readonly ResourceStep[]): Promise<Problem[]> {
  const problems: Problem[] = []
  for (const { declared, desired } of steps) {
    const { type, logical_id } = declared
    if (!type.registered) continue
    for (const problem of await validateWithHandler(services, type.registered, logical_id, desired))
      if (expressionsIn(desired[propertyName(problem.path)]).length === 0)
        problems.push({ ...problem, path: `resources.${logical_id}.properties.${problem.path}` })
  }
  return problems
}

/** Raises VALIDATION_FAILED for a plan that destroys a protected resource, FORBIDDEN for one with denied actions. */
export function refuseForbidden({ plan, denied }: PreparedDeploy): void {
  const problems = planProblems(plan)
  if (problems.length > 0) raiseInvalid(problems)
  refuseDenied(denied)
}

/** Raises FORMATION_HAS_DEPENDENTS if another formation imports an output that is not in `outputs`. */
async function requireNoImporters(tx: Tx, { id }: FormationRow, outputs: readonly string[]): Promise<void> {
  const importers = await listImporters(tx, id, outputs)
  if (importers.length > 0)
    raise('FORMATION_HAS_DEPENDENTS', {
      message: `Formation ${importers[0].name} imports the output ${importers[0].output}`,
      meta: { importers: importers.map(({ formation_id, name, output }) => ({ formation_id, name, output })) },
    })
}

const credentialOf = ({ credential: { type, id }, project_id }: Caller): DeployCredential => ({
  type,
  id,
  bound: project_id !== null,
})

/** Inserts an operation and its work item, which runs with the permissions of the caller. */
async function enqueueOperation(
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
  operationWork.wake(tx, { entity: formation.id, id, project_id })
}

/** Inserts a formation and enqueues its first deploy. */
export async function insertFormation(
  tx: Tx,
  services: Services,
  caller: Caller,
  projectId: string,
  input: {
    id: string
    name: string
    metadata?: unknown
    termination_protection?: boolean
    parameters: Record<string, string>
  },
  { compiled, changes, imported }: PreparedDeploy,
): Promise<FormationRow> {
  const { id, name, metadata = null, termination_protection = false, parameters } = input
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
  await storeImports(tx, projectId, id, compiled)
  await trackImported(tx, projectId, id, imported)
  await enqueueOperation(tx, services, caller, row, {
    id: operation_id,
    operation_type: 'create',
    plan: changes,
    parameters,
  })
  return row
}

/**
 * Stores a new template of a formation and enqueues its deploy. Locks the formation.
 * @throws FORMATION_OPERATION_IN_PROGRESS also if an operation has started since `seen` was read, FORMATION_HAS_DEPENDENTS
 */
export async function enqueueUpdate(
  tx: Tx,
  services: Services,
  caller: Caller,
  seen: FormationRow,
  input: {
    metadata?: unknown
    termination_protection?: boolean
    parameters: Record<string, string>
    force_conflicts?: boolean
  },
  { compiled, changes, imported }: PreparedDeploy,
): Promise<FormationRow> {
  const stored = await formationKind.lock(tx, seen.id)
  refuseBusy(stored)
  const { operation_id: last } = stored
  if (last !== seen.operation_id)
    raise('FORMATION_OPERATION_IN_PROGRESS', {
      message: `Operation ${last} was started in the meantime`,
      meta: { operation_id: last },
    })
  await requireNoImporters(tx, stored, Object.keys(compiled.outputs))
  const operation_id = newId('form_op')
  const { template, values } = withholdSecrets(services, compiled.template)
  const { metadata, termination_protection, parameters, force_conflicts } = input
  const row = await formationKind.update(tx, stored.id, {
    template,
    sealed_values: sealValues(services, stored.id, stored.project_id, values),
    status: 'updating',
    operation_id,
    ...(metadata === undefined ? {} : { metadata: metadata as never }),
    ...(termination_protection === undefined ? {} : { termination_protection }),
  })
  await storeImports(tx, row.project_id, row.id, compiled)
  await trackImported(tx, row.project_id, row.id, imported)
  await enqueueOperation(tx, services, caller, row, {
    id: operation_id,
    operation_type: 'update',
    plan: changes,
    parameters,
    force_conflicts,
  })
  return row
}

/**
 * Enqueues the delete of a formation. Locks the formation.
 * @throws FORMATION_OPERATION_IN_PROGRESS, FORMATION_PROTECTED, FORMATION_HAS_DEPENDENTS, VALIDATION_FAILED
 */
export async function enqueueDelete(tx: Tx, services: Services, caller: Caller, id: string): Promise<FormationRow> {
  const stored = await formationKind.lock(tx, id)
  refuseBusy(stored)
  if (stored.termination_protection)
    raise('FORMATION_PROTECTED', { message: `Formation ${id} is protected from deletion`, meta: { id } })
  await requireNoImporters(tx, stored, [])
  const tracked = await listTrackedResources(tx, id)
  const problems = tracked
    .filter(row => row.prevent_destroy && !row.retain)
    .map(({ logical_id }) => preventDestroyProblem(logical_id))
  if (problems.length > 0) raiseInvalid(problems)
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

/** Raises FORBIDDEN if the caller may not delete a resource of the formation. */
export async function refuseForbiddenTeardown(
  services: Services,
  caller: Caller,
  formation: FormationRow,
): Promise<void> {
  const { pool } = services
  const tracked = await listTrackedResources(pool, formation.id)
  // Resources of handlers require no action.
  const builtIn = tracked.filter(({ resource_type }) => findType(services, resource_type)?.registered === null)
  const { project_id } = formation
  const live = await listLiveResources(services, pool, builtIn, project_id)
  const teardown = { steps: [], removed: [...tracked].reverse(), live }
  const parents = await readPlanParents(services, pool, teardown, project_id)
  refuseDenied(deniedActions(services, caller, { ...teardown, parents }, project_id))
}
