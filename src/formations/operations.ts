import { z } from 'zod'
import { AppError, type RecordedFailure, raise, raiseInvalid } from '../core/api/errors.ts'
import { equalsFilter, oneOf } from '../core/api/filters.ts'
import { newId } from '../core/api/ids.ts'
import { booleanQuery, pageOf, pageResult } from '../core/api/lists.ts'
import {
  type Context,
  itemOperation,
  type Operation,
  type OperationResult,
  operation,
  result,
  type WaitingGrant,
} from '../core/api/operation.ts'
import { resource } from '../core/api/resource.ts'
import { sql } from '../core/db/sql.ts'
import {
  addFormation,
  changeFormation,
  checkFormationMetadata,
  deleteFormation,
  handledProblems,
  prepareDeploy,
  refuseBusy,
  refuseForbidden,
  refuseForbiddenTeardown,
} from './accept.ts'
import { adoptResource } from './adopt.ts'
import { refuseConflicts } from './conflicts.ts'
import { driftFor } from './drift.ts'
import { exportProject } from './export/project.ts'
import {
  BUSY,
  Drift,
  ExportedTemplate,
  FORMATION_STATUSES,
  FormationExportInput,
  FormationImportInput,
  FormationInput,
  FormationOperation,
  FormationPatch,
  FormationPlan,
  FormationWithResources,
  formationEvents,
  formationKind,
  PlanInput,
  type FormationOperation as ShownOperation,
  TemplateValidation,
  ValidateTemplateInput,
} from './model.ts'
import { handledSteps } from './plan.ts'
import { dropPlan, openPlan, savePlan } from './saved-plans.ts'
import { openAnswer } from './sealed.ts'
import { shownTo } from './show.ts'
import { findOperation, operationBytes, operationColumns, takeAnswer } from './store.ts'
import { streamOperation } from './stream.ts'
import { compileTemplate } from './template/compile.ts'
import { expectFormation } from './wait.ts'

const tag = 'Formations'
const path = '/formations'
const formations = resource(formationKind, { path, tag })

/** A template may be as large as it is allowed to be, as a text in JSON, beside its parameters. */
const bodyLimit = () => 4 * 1024 * 1024

const Wait = z.object({
  wait: booleanQuery.optional().describe('`false` answers at once, while the work goes on'),
})

const Save = z.object({
  save: booleanQuery.optional().describe('Keep the plan of a formation, to apply it as it is'),
})

const waiting: WaitingGrant = {
  default: true,
  done: ['active'],
  failed: ['failed'],
  paused: [],
  poll: 'getFormation',
}

const raises = [
  'FORBIDDEN',
  'FORMATION_MISSING_PARAMETERS',
  'FORMATION_INVALID_METADATA',
  'FORMATION_HANDLER_FAILED',
  'NAME_CONFLICT',
  'SECRET_NOT_DECRYPTABLE',
] as const

type Change = Pick<Context, 'services' | 'caller' | 'request'>

/** The answer of a deploy that the caller waits for, or does not. */
async function answered(
  context: Change,
  id: string,
  { status, wait, operationId }: { status: number; wait: boolean; operationId: string },
  expected: ReturnType<typeof expectFormation> | null,
): Promise<OperationResult> {
  const { services, request } = context
  const row = wait && expected ? await expected.wait(request.closed) : await formationKind.find(services.pool, id)
  if (!row) return raise('RESOURCE_NOT_FOUND', { meta: { id } })
  const over = row.operation_id !== operationId || !BUSY.includes(row.status)
  const sealed = over && wait ? await takeAnswer(services.pool, operationId) : null
  const once = sealed ? openAnswer(services, operationId, row.project_id, sealed) : {}
  return result(over && wait ? status : 202, await shownTo(context, row, once))
}

const validate = operation({
  id: 'validateFormation',
  method: 'post',
  path: `${path}/validate`,
  summary: 'Say what is wrong with a template',
  description:
    'Nothing is written and nothing that the template names by an id is looked up. With `parameters`, those that are missing count as errors.',
  tag,
  action: 'formations:ValidateFormation',
  gate: 'any',
  about: formationKind,
  reads: true,
  body: ValidateTemplateInput,
  bodyLimit,
  answers: { 200: TemplateValidation },
  raises: ['FORMATION_HANDLER_FAILED'],
  async run({ services, body }) {
    const compilation = await compileTemplate(services, body.template, { parameters: body.parameters, existing: null })
    const missing = body.parameters === undefined ? [] : compilation.missing
    const { compiled } = compilation
    // Handlers are asked once nothing else is wrong.
    const handled = compiled ? await handledProblems(services, await handledSteps(services, compiled)) : []
    const errors = [
      ...compilation.problems,
      ...handled,
      ...missing.map(name => ({ path: `parameters.${name}`, message: 'is required' })),
    ].map(({ path: at, message }) => ({ path: at, message }))
    return {
      valid: errors.length === 0,
      errors,
      warnings: compilation.warnings
        .filter(({ path: at }) => !errors.some(each => each.path === at))
        .map(({ path: at, message }) => ({ path: at, message })),
    }
  },
})

const plan = operation({
  id: 'planFormation',
  method: 'post',
  path: `${path}/plan`,
  summary: 'Say what a deploy of a template would do',
  description:
    'Compares the template, or the stored one, with the resources as they are; nothing is changed. Values of resources that the caller may not read are left out. With `save` the plan is kept for a day, to be applied as it is by an update with its `plan_id`.',
  tag,
  action: 'formations:PlanFormation',
  creates: formationKind,
  transaction: false,
  query: Save,
  body: PlanInput,
  bodyLimit,
  answers: { 200: FormationPlan },
  raises: ['FORMATION_MISSING_PARAMETERS', 'FORMATION_HANDLER_FAILED', 'RESOURCE_NOT_FOUND', 'SECRET_NOT_DECRYPTABLE'],
  async run({ services, caller, project, body, query, db, allow }) {
    const { formation_id, parameters = {}, template } = body
    if (query.save && formation_id === undefined)
      raiseInvalid({ code: 'REQUIRED', path: 'formation_id', message: 'is required to save a plan' })
    const projectId = project as string
    const formation = formation_id === undefined ? null : await formationKind.find(db, formation_id)
    if (formation_id !== undefined && (!formation || formation.project_id !== projectId))
      raise('RESOURCE_NOT_FOUND', { meta: { id: formation_id } })
    if (formation) allow('formations:PlanFormation', { kind: formationKind, row: formation })
    if (!formation && template === undefined)
      raiseInvalid({ code: 'REQUIRED', path: 'template', message: 'is required without formation_id' })
    const prepared = await prepareDeploy(services, caller, projectId, formation, { template, parameters })
    const { denied: unauthorized_actions } = prepared
    return {
      changes: prepared.changes,
      ...(unauthorized_actions.length > 0 ? { unauthorized_actions } : {}),
      ...(query.save && formation ? await savePlan(services, formation, prepared, parameters) : {}),
    }
  },
})

const create = operation({
  id: 'createFormation',
  method: 'post',
  path,
  summary: 'Create the resources of a template',
  description:
    'Answers 201 once the deploy has run: its status says whether it worked. The actions of every resource are asked of the caller before anything is made. With `wait=false`, and where a deploy takes long, 202 and the deploy goes on.',
  tag,
  action: 'formations:CreateFormation',
  creates: formationKind,
  starts: { kind: 'formation', field: 'id' },
  query: Wait,
  body: FormationInput,
  bodyLimit,
  waiting,
  checkedBy: 'planFormation',
  answers: { 201: FormationWithResources, 202: FormationWithResources },
  raises: [...raises],
  secretAnswer: true,
  transaction: false,
  async run(context) {
    const { services, caller, project, body, query } = context
    const { name, template, parameters = {}, metadata, termination_protection } = body
    const projectId = project as string
    checkFormationMetadata(metadata)
    const prepared = await prepareDeploy(services, caller, projectId, null, { template, parameters })
    refuseForbidden(prepared)
    const wait = query.wait !== false
    const id = newId(formationKind.prefix)
    const expected = wait ? expectFormation(services, id) : null
    try {
      const given = { id, name, metadata, termination_protection, parameters }
      const row = await services.write(async tx => {
        const added = await addFormation(tx, services, caller, projectId, given, prepared)
        context.record(tx, wait ? 201 : 202, { id, made: { id, wait } })
        return added
      })
      return await answered(context, id, { status: 201, wait, operationId: row.operation_id }, expected)
    } finally {
      expected?.cancel()
    }
  },
  again: (context, made) => answeredAgain(context, made, 201),
})

/** Answers in place of a request that was lost behind its commit. */
async function answeredAgain(context: Change, made: Record<string, unknown>, status: number): Promise<OperationResult> {
  const { id, wait } = made as { id: string; wait: boolean }
  const expected = expectFormation(context.services, id)
  try {
    const row = (await formationKind.find(context.services.pool, id)) ?? raise('RESOURCE_NOT_FOUND', { meta: { id } })
    return await answered(context, id, { status, wait, operationId: row.operation_id }, expected)
  } finally {
    expected.cancel()
  }
}

const change = (method: 'put' | 'patch'): Operation =>
  itemOperation(formationKind, {
    id: method === 'put' ? 'replaceFormation' : 'updateFormation',
    method,
    path: `${path}/{formation_id}`,
    summary: 'Deploy a template over the resources of a formation',
    description:
      'Without a template the stored one is applied again, which undoes what was changed by hand. Metadata and protection alone change no resource. Answers 200 once the deploy has run: its status says whether it worked.',
    tag,
    action: 'formations:UpdateFormation',
    starts: { kind: 'formation', field: 'id' },
    query: Wait,
    body: FormationPatch,
    bodyLimit,
    waiting,
    checkedBy: 'planFormation',
    answers: { 200: FormationWithResources, 202: FormationWithResources },
    raises: [
      ...raises,
      'FORMATION_OPERATION_IN_PROGRESS',
      'FORMATION_CONFLICT',
      'FORMATION_HAS_DEPENDENTS',
      'FORMATION_PLAN_STALE',
      'PRECONDITION_FAILED',
    ],
    transaction: false,
    async run(context) {
      const { services, caller, body, query, resource: formation } = context
      const { template, parameters, metadata, termination_protection, plan_id } = body
      if (plan_id !== undefined && (template !== undefined || parameters !== undefined))
        raiseInvalid({ code: 'INVALID_VALUE', path: 'plan_id', message: 'takes the place of template and parameters' })
      checkFormationMetadata(metadata)
      refuseBusy(formation)
      if (
        template === undefined &&
        parameters === undefined &&
        plan_id === undefined &&
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
        return result(200, await shownTo(context, row))
      }
      const saved = plan_id === undefined ? null : await openPlan(services, formation, plan_id)
      const asked = saved ?? { template, parameters: parameters ?? {} }
      const prepared = await prepareDeploy(services, caller, formation.project_id, formation, asked)
      saved?.check(prepared.plan)
      refuseForbidden(prepared)
      // Whoever applies a saved plan has seen its conflicts.
      const force_conflicts = body.force_conflicts ?? (saved !== null || services.config.FORMATION_FORCE_CONFLICTS)
      if (!force_conflicts) refuseConflicts(prepared.changes)
      const wait = query.wait !== false
      const expected = wait ? expectFormation(services, formation.id) : null
      try {
        const given = { metadata, termination_protection, parameters: asked.parameters, force_conflicts }
        const row = await services.write(async tx => {
          const changed = await changeFormation(tx, services, caller, formation, given, prepared)
          if (plan_id !== undefined) await dropPlan(tx, plan_id)
          context.record(tx, wait ? 200 : 202, { made: { id: changed.id, operation_id: changed.operation_id, wait } })
          return changed
        })
        return await answered(context, row.id, { status: 200, wait, operationId: row.operation_id }, expected)
      } finally {
        expected?.cancel()
      }
    },
  })

const remove = itemOperation(formationKind, {
  id: 'deleteFormation',
  method: 'delete',
  path: `${path}/{formation_id}`,
  summary: 'Delete a formation with its resources',
  description:
    'In the reverse order of their dependencies; resources whose deletion policy is `retain` stay. All of it is tried first: what can be foreseen deletes nothing and answers FORMATION_DELETE_FAILED.',
  tag,
  action: 'formations:DeleteFormation',
  starts: { kind: 'formation', field: 'id' },
  query: Wait,
  waiting: { ...waiting, done: ['deleted'], failed: ['delete_failed'] },
  answers: { 200: z.object({ success: z.literal(true).describe('All is gone') }), 202: FormationWithResources },
  raises: [
    'FORBIDDEN',
    'FORMATION_DELETE_FAILED',
    'FORMATION_OPERATION_IN_PROGRESS',
    'FORMATION_PROTECTED',
    'FORMATION_HAS_DEPENDENTS',
  ],
  transaction: false,
  async run(context) {
    const { services, caller, request, query, resource: formation } = context
    const { id } = formation
    refuseBusy(formation)
    await refuseForbiddenTeardown(services, caller, formation)
    const expected = expectFormation(services, id)
    try {
      await services.write(async tx => {
        const row = await deleteFormation(tx, services, caller, id)
        context.record(tx, 200, { made: { id, operation_id: row.operation_id } })
      })
      const row =
        query.wait === false ? await formationKind.find(services.pool, id) : await expected.wait(request.closed)
      if (row?.status === 'deleting') return result(202, await shownTo(context, row))
      if (row?.status === 'delete_failed') throw failedBy(row.error)
      return { success: true as const }
    } finally {
      expected.cancel()
    }
  },
})

/** The refusal that a failed teardown is answered with. */
function failedBy(error: RecordedFailure | null): AppError {
  const { code = 'INTERNAL_ERROR', message, meta } = error ?? {}
  return new AppError(code as never, { message, meta })
}

const drift = itemOperation(formationKind, {
  id: 'getFormationDrift',
  method: 'get',
  path: `${path}/{formation_id}/drift`,
  summary: 'Compare the resources of a formation with what was deployed',
  description:
    'Shows what was changed or deleted by another way than the formation. Fields that the template ignores and write-only values are not compared.',
  tag,
  action: 'formations:PlanFormation',
  answers: { 200: Drift },
  raises: ['FORMATION_HANDLER_FAILED'],
  run: ({ services, caller, resource: formation }) => driftFor(services, caller, formation),
})

const importResource = formations.action('import', {
  id: 'importFormationResource',
  summary: 'Have a formation manage a resource that exists',
  description:
    'The template must declare a resource of its type under the logical id, which has none. The resource is changed by the next deploy, not here. Needs the action that changes it as well.',
  action: 'formations:UpdateFormation',
  body: FormationImportInput,
  answers: { 200: FormationWithResources },
  raises: ['FORBIDDEN', 'FORMATION_OPERATION_IN_PROGRESS', 'FORMATION_HANDLER_FAILED', 'RESOURCE_NOT_FOUND'],
  async run(context) {
    const { tx, services, caller, body, resource: formation } = context
    await adoptResource(tx, services, caller, formation.id, body)
    return shownTo(context, formation, {}, tx)
  },
})

const exportTemplate = operation({
  id: 'exportTemplate',
  method: 'post',
  path: `${path}/export`,
  summary: 'Write a template of resources that exist',
  description:
    'Ids of exported resources become references, ids of others and values that are not shown become parameters. Needs the action that reads each resource. Without a selection it covers the project, except for API keys, conversations and sessions.',
  tag,
  action: 'formations:ExportTemplate',
  creates: formationKind,
  reads: true,
  body: FormationExportInput,
  answers: { 200: ExportedTemplate },
  raises: ['FORBIDDEN', 'RESOURCE_NOT_FOUND'],
  run: ({ services, caller, project, body, allow }) =>
    exportProject(services, caller, project as string, body, row =>
      allow('formations:GetFormation', { kind: formationKind, row }),
    ),
})

const listEvents = itemOperation(formationKind, {
  id: 'listFormationEvents',
  method: 'get',
  path: `${path}/{formation_id}/events`,
  summary: 'List the operations of a formation with what they did, oldest first',
  description: 'Each with its plan and its events in their order.',
  tag,
  action: 'formations:ListFormationEvents',
  paged: true,
  answers: { 200: pageOf(FormationOperation) },
  run: context =>
    // formation_operations_formation serves the order.
    pageResult<ShownOperation>(context, {
      columns: operationColumns,
      from: sql.fragment`formation_operations t`,
      rows: sql.fragment`t.formation_id = ${context.resource.id}`,
      time: sql.fragment`t.created_at`,
      order: sql.fragment`t.created_at, t.id`,
      key: sql.fragment`t.id`,
      bytes: operationBytes,
      present: row => ({
        ...row,
        events: (row.events ?? []).map(event => ({ ...event, timestamp: new Date(event.timestamp).toISOString() })),
      }),
    }),
})

const stream = itemOperation(formationKind, {
  id: 'streamFormationOperation',
  method: 'get',
  path: `${path}/{formation_id}/operations/{operation_id}/stream`,
  summary: 'Follow an operation as server-sent events',
  description: 'Begins with what it did so far, goes on behind `Last-Event-ID`, and ends with the operation.',
  tag,
  action: 'formations:ListFormationEvents',
  produces: 'text/event-stream',
  stream: formationEvents,
  answers: { 200: null },
  raises: ['RESOURCE_NOT_FOUND'],
  async run(context) {
    const { resource: formation, params, db, request } = context
    const found = await findOperation(db, params.operation_id)
    if (found?.formation_id !== formation.id) return raise('RESOURCE_NOT_FOUND', { meta: { id: params.operation_id } })
    const seen = Number(request.headers['last-event-id'] ?? 0)
    return streamOperation(context, found, Number.isSafeInteger(seen) && seen > 0 ? seen : 0)
  },
})

export const formationOperations: Operation[] = [
  validate,
  plan,
  create,
  // formations_project serves the order.
  formations.list({
    filters: { status: oneOf('status', FORMATION_STATUSES), name: equalsFilter('name') },
    where: () => [sql.fragment`t.status <> 'deleted'`],
    bytes: sql.fragment`octet_length(t.template::text) + coalesce(octet_length(t.metadata::text), 0)
      + coalesce(octet_length(t.resolved_metadata::text), 0) + coalesce(octet_length(t.outputs::text), 0)`,
  }),
  formations.get({
    answers: { 200: FormationWithResources },
    present: context => shownTo(context, context.resource),
  }),
  change('patch'),
  change('put'),
  remove,
  drift,
  importResource,
  exportTemplate,
  listEvents,
  stream,
]
