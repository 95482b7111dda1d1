import type { z } from 'zod'
import { canSeeProject } from '#core/api/access.ts'
import { isIdOf, kinds } from '#core/api/kind.ts'
import { type Context, type OperationResult, result } from '#core/api/operation.ts'
import { warningsField } from '#core/api/warnings.ts'
import { AppError, type Problem, type RecordedFailure, raise, raiseInvalid } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import type { Services } from '#core/base/services.ts'
import type { Caller } from '#core/iam/caller.ts'
import { compileTemplate } from '../plans/compile.ts'
import { refuseConflicts } from '../plans/conflicts.ts'
import { registeredSteps } from '../plans/plan.ts'
import { rehearseCreates } from '../plans/rehearsal.ts'
import { openAnswer } from '../plans/sealed.ts'
import {
  BUSY_STATUSES,
  type FormationInput,
  type FormationPatch,
  type FormationPlan,
  type FormationRow,
  formationKind,
  type PlanInput,
  refuseBusy,
  type TemplateValidation,
  type ValidateTemplateInput,
} from '../records/model.ts'
import { subscribeOperationEnd } from '../records/notifications.ts'
import { consumeSealedAnswer } from '../records/store.ts'
import { propertyWarnings } from '../types/built-in.ts'
import {
  checkFormationMetadata,
  enqueueDelete,
  enqueueUpdate,
  handlerProblems,
  insertFormation,
  prepareDeploy,
  refuseForbidden,
  refuseForbiddenTeardown,
} from './accept.ts'
import { presentFormation } from './present.ts'
import { deletePlan, loadSavedPlan, savePlan } from './saved-plans.ts'

/** Requests to validate, plan, deploy and delete: they start an operation and wait for its end. */

/**
 * Validates a template for a new formation. In a project, given or of the credential, its creates are tried too.
 * @throws FORMATION_HANDLER_FAILED, RESOURCE_NOT_FOUND
 */
export async function validateTemplate(
  { services, caller, request }: Pick<Context, 'services' | 'caller' | 'request'>,
  { project_id, template, parameters }: z.output<typeof ValidateTemplateInput>,
): Promise<z.output<typeof TemplateValidation>> {
  const project = project_id ?? caller.project_id
  if (project !== null) await requireVisibleProject(services, caller, project)
  const tenant = project ?? `user:${caller.user.id}`
  const compilation = await compileTemplate(services, template, { parameters, existing: null, tenant })
  const missing = parameters === undefined ? [] : compilation.missing
  const { compiled } = compilation
  // Handlers and the project validate only what has no other error.
  const handled = compiled ? await handlerProblems(services, await registeredSteps(services, compiled)) : []
  const tried =
    compiled && project !== null
      ? await rehearseCreates(services, caller, project, compiled, request.closed)
      : { problems: [], warnings: [] }
  const addresses = (compiled?.declared ?? []).flatMap(({ logical_id, type, properties }) =>
    type.registered ? [] : propertyWarnings(services, type, properties, `resources.${logical_id}.properties`),
  )
  const errors = [
    ...compilation.problems,
    ...handled,
    ...tried.problems,
    ...missing.map(name => ({ path: `parameters.${name}`, message: 'is required' })),
  ].map(({ path: at, message }) => ({ path: at, message }))
  return {
    valid: errors.length === 0,
    errors,
    warnings: [...compilation.warnings, ...addresses, ...tried.warnings]
      .filter(({ path: at }) => !errors.some(each => each.path === at))
      .map(({ path: at, message }) => ({ path: at, message })),
  }
}

async function requireVisibleProject({ pool }: Services, caller: Caller, id: string): Promise<void> {
  const kind = kinds.get('project')
  if (!canSeeProject(caller, id) || !isIdOf(kind, id) || !(await kind.find(pool, id)))
    raise('RESOURCE_NOT_FOUND', { meta: { id } })
}

/** Plans the deploy of a template; `save` stores the plan of a formation. */
export async function planDeploy(
  { services, caller, db, allow }: Pick<Context, 'services' | 'caller' | 'db' | 'allow'>,
  projectId: string,
  body: z.output<typeof PlanInput>,
  save: boolean,
): Promise<FormationPlan> {
  const { formation_id, parameters = {}, template, import_resources } = body
  if (save && formation_id === undefined)
    raiseInvalid({ code: 'REQUIRED', path: 'formation_id', message: 'is required to save a plan' })
  const formation = formation_id === undefined ? null : await formationKind.find(db, formation_id)
  if (formation_id !== undefined && (!formation || formation.project_id !== projectId))
    raise('RESOURCE_NOT_FOUND', { meta: { id: formation_id } })
  if (formation) allow('formations:PlanFormation', { kind: formationKind, row: formation })
  if (!formation && template === undefined)
    raiseInvalid({ code: 'REQUIRED', path: 'template', message: 'is required without formation_id' })
  const prepared = await prepareDeploy(services, caller, projectId, formation, {
    template,
    parameters,
    import_resources,
  })
  const { denied: unauthorized_actions } = prepared
  return {
    changes: prepared.changes,
    ...(unauthorized_actions.length > 0 ? { unauthorized_actions } : {}),
    ...warningsField(prepared.warnings),
    ...(save && formation ? await savePlan(services, formation, prepared, parameters) : {}),
  }
}

type RequestContext = Pick<Context, 'services' | 'caller' | 'request'>
type WriteContext = RequestContext & Pick<Context, 'record'>

/** Returns the result of a deploy: `status` if the caller waited and the operation has ended, otherwise 202. */
async function deployResult(
  context: RequestContext,
  id: string,
  { status, wait, operationId }: { status: number; wait: boolean; operationId: string },
  subscription: ReturnType<typeof subscribeOperationEnd> | null,
  warnings: readonly Problem[] = [],
): Promise<OperationResult> {
  const { services, request } = context
  const row =
    wait && subscription ? await subscription.wait(request.closed) : await formationKind.find(services.pool, id)
  if (!row) return raise('RESOURCE_NOT_FOUND', { meta: { id } })
  const isOver = row.operation_id !== operationId || !BUSY_STATUSES.includes(row.status)
  const sealed = isOver && wait ? await consumeSealedAnswer(services.pool, operationId) : null
  const once = sealed ? openAnswer(services, operationId, row.project_id, sealed) : {}
  const shown = await presentFormation(context, row, once)
  return result(isOver && wait ? status : 202, { ...shown, ...warningsField(warnings) })
}

/** Inserts a formation and starts its first deploy. `wait`: whether to wait for the end of the deploy. */
export async function createFormation(
  context: WriteContext,
  projectId: string,
  body: FormationInput,
  wait: boolean,
): Promise<OperationResult> {
  const { services, caller } = context
  const { name, template, parameters = {}, metadata, termination_protection, import_resources } = body
  checkFormationMetadata(metadata)
  const prepared = await prepareDeploy(services, caller, projectId, null, { template, parameters, import_resources })
  refuseForbidden(prepared)
  const id = newId(formationKind.prefix)
  const subscription = wait ? subscribeOperationEnd(services, id) : null
  try {
    const input = { id, name, metadata, termination_protection, parameters }
    const row = await services.write(async tx => {
      const added = await insertFormation(tx, services, caller, projectId, input, prepared)
      context.record(tx, wait ? 201 : 202, { id, made: { id, wait } })
      return added
    })
    const ended = { status: 201, wait, operationId: row.operation_id }
    return await deployResult(context, id, ended, subscription, prepared.warnings)
  } finally {
    subscription?.cancel()
  }
}

/** Returns the result for a repeat of a request whose response was lost after its commit. */
export async function replayedResult(
  context: RequestContext,
  made: Record<string, unknown>,
  status: number,
): Promise<OperationResult> {
  const { id, wait } = made as { id: string; wait: boolean }
  const subscription = subscribeOperationEnd(context.services, id)
  try {
    const row = (await formationKind.find(context.services.pool, id)) ?? raise('RESOURCE_NOT_FOUND', { meta: { id } })
    return await deployResult(context, id, { status, wait, operationId: row.operation_id }, subscription)
  } finally {
    subscription.cancel()
  }
}

/** Updates a formation and starts its deploy, unless only metadata or termination protection change. */
export async function updateFormation(
  context: WriteContext,
  formation: FormationRow,
  body: FormationPatch,
  wait: boolean,
): Promise<OperationResult> {
  const { services, caller } = context
  const { template, parameters, metadata, termination_protection, plan_id, import_resources } = body
  if (plan_id !== undefined && (template !== undefined || parameters !== undefined))
    raiseInvalid({
      code: 'INVALID_VALUE',
      path: 'plan_id',
      message: 'cannot be combined with template or parameters',
    })
  checkFormationMetadata(metadata)
  refuseBusy(formation)
  if (
    template === undefined &&
    parameters === undefined &&
    plan_id === undefined &&
    import_resources === undefined &&
    (metadata !== undefined || termination_protection !== undefined)
  ) {
    const row = await services.write(async tx => {
      const stored = await formationKind.lock(tx, formation.id)
      refuseBusy(stored)
      const changed = await formationKind.update(tx, stored.id, {
        metadata: metadata as never,
        termination_protection,
      })
      context.record(tx, 200, { body: formationKind.present(changed) })
      return changed
    })
    return result(200, await presentFormation(context, row))
  }
  const saved = plan_id === undefined ? null : await loadSavedPlan(services, formation, plan_id)
  const request = { ...(saved ?? { template, parameters: parameters ?? {} }), import_resources }
  const prepared = await prepareDeploy(services, caller, formation.project_id, formation, request)
  saved?.check(prepared.plan)
  refuseForbidden(prepared)
  // The caller of a saved plan has seen its conflicts.
  const force_conflicts = body.force_conflicts ?? (saved !== null || services.config.FORMATION_FORCE_CONFLICTS)
  if (!force_conflicts) refuseConflicts(prepared.changes)
  const subscription = wait ? subscribeOperationEnd(services, formation.id) : null
  try {
    const input = { metadata, termination_protection, parameters: request.parameters, force_conflicts }
    const row = await services.write(async tx => {
      const changed = await enqueueUpdate(tx, services, caller, formation, input, prepared)
      if (plan_id !== undefined) await deletePlan(tx, plan_id)
      context.record(tx, wait ? 200 : 202, { made: { id: changed.id, operation_id: changed.operation_id, wait } })
      return changed
    })
    const ended = { status: 200, wait, operationId: row.operation_id }
    return await deployResult(context, row.id, ended, subscription, prepared.warnings)
  } finally {
    subscription?.cancel()
  }
}

/** Starts the delete of a formation. Raises the failure of a teardown that ends within the wait. */
export async function deleteFormation(
  context: WriteContext,
  formation: FormationRow,
  wait: boolean,
): Promise<OperationResult | { success: true }> {
  const { services, caller, request } = context
  const { id } = formation
  refuseBusy(formation)
  await refuseForbiddenTeardown(services, caller, formation)
  const subscription = subscribeOperationEnd(services, id)
  try {
    await services.write(async tx => {
      const row = await enqueueDelete(tx, services, caller, id)
      context.record(tx, 200, { made: { id, operation_id: row.operation_id } })
    })
    const row = wait ? await subscription.wait(request.closed) : await formationKind.find(services.pool, id)
    if (row?.status === 'deleting') return result(202, await presentFormation(context, row))
    if (row?.status === 'delete_failed') throw teardownError(row.error)
    return { success: true as const }
  } finally {
    subscription.cancel()
  }
}

/** Returns the recorded failure of a teardown as the error of the request. */
function teardownError(error: RecordedFailure | null): AppError {
  const { code = 'INTERNAL_ERROR', message, meta } = error ?? {}
  return new AppError(code as never, { message, meta })
}
