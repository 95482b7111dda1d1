import { z } from 'zod'
import { equalsFilter, oneOf } from '#core/api/filters.ts'
import { booleanQuery, pageOf, pageResult } from '#core/api/lists.ts'
import { itemOperation, type Operation, operation, type WaitingGrant } from '#core/api/operation.ts'
import { raise } from '#core/base/errors.ts'
import { sql } from '#core/db/sql.ts'
import { resource } from '#core/resources/resource.ts'
import { streamOperation } from './deploys/stream.ts'
import { getDrift } from './drift/drift.ts'
import { exportProject } from './export/project.ts'
import { adoptResource } from './plans/adopt.ts'
import {
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
  FormationWithWarnings,
  formationEvents,
  formationKind,
  PlanInput,
  type FormationOperation as ShownOperation,
  TemplateValidation,
  ValidateTemplateInput,
} from './records/model.ts'
import { findOperation, operationBytes, operationColumns } from './records/store.ts'
import {
  createFormation,
  deleteFormation,
  planDeploy,
  replayedResult,
  updateFormation,
  validateTemplate,
} from './requests/deploy-requests.ts'
import { presentFormation } from './requests/present.ts'

const tag = 'Formations'
const path = '/formations'
const formations = resource(formationKind, { path, tag })

/** Holds a template of the maximum size, escaped as a JSON string, and its parameters. */
const bodyLimit = () => 4 * 1024 * 1024

const Wait = z.object({
  wait: booleanQuery.optional().describe('Whether to wait until the operation has ended. Default true.'),
})

const Save = z.object({
  save: booleanQuery
    .optional()
    .describe('Whether to store the plan of a formation, so that it can be applied. Default false.'),
})

const waiting: WaitingGrant = {
  default: true,
  running: ['creating', 'updating', 'deleting'],
  done: ['active'],
  failed: ['failed', 'deleted', 'delete_failed'],
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

const validate = operation({
  id: 'validateFormation',
  method: 'post',
  path: `${path}/validate`,
  summary: 'Validate a template',
  description:
    'Writes nothing. In a project, given as `project_id` or of the credential, tries the creates of the template as a new formation would make them, and undoes them: IDs that do not exist, names that are taken and exceeded quotas are errors. Resources that the caller may not create are not tried: `warnings` lists them. If `parameters` is given, missing parameters are errors.',
  tag,
  action: 'formations:ValidateFormation',
  gate: 'any',
  byDefinitions: true,
  about: formationKind,
  reads: true,
  body: ValidateTemplateInput,
  bodyLimit,
  answers: { 200: TemplateValidation },
  raises: ['FORMATION_HANDLER_FAILED', 'RESOURCE_NOT_FOUND'],
  run: context => validateTemplate(context, context.body),
})

const plan = operation({
  id: 'planFormation',
  method: 'post',
  path: `${path}/plan`,
  summary: 'Plan a deploy',
  description:
    'Compares the given template, or the stored one, with the current resources. Changes nothing. Values of resources that the caller may not read are omitted. With `save`, the plan is stored for 24 hours and can be applied by an update with its `plan_id`.',
  tag,
  action: 'formations:PlanFormation',
  creates: formationKind,
  transaction: false,
  query: Save,
  body: PlanInput,
  bodyLimit,
  answers: { 200: FormationPlan },
  raises: ['FORMATION_MISSING_PARAMETERS', 'FORMATION_HANDLER_FAILED', 'RESOURCE_NOT_FOUND', 'SECRET_NOT_DECRYPTABLE'],
  run: context => planDeploy(context, context.project as string, context.body, context.query.save === true),
})

const create = operation({
  id: 'createFormation',
  method: 'post',
  path,
  summary: 'Create a formation',
  description:
    'Creates the resources of the template. Requires the actions of every resource, which are checked before the first one is created. Returns 201 when the deploy has ended, whether it succeeded or failed (see `status`). Returns 202 with `wait=false`, or when the wait times out; the deploy then continues in the background.',
  tag,
  action: 'formations:CreateFormation',
  creates: formationKind,
  starts: { kind: 'formation', field: 'id' },
  query: Wait,
  body: FormationInput,
  bodyLimit,
  waiting,
  checkedBy: 'planFormation',
  answers: { 201: FormationWithWarnings, 202: FormationWithWarnings },
  raises: [...raises],
  secretAnswer: true,
  transaction: false,
  run: context => createFormation(context, context.project as string, context.body, context.query.wait !== false),
  again: (context, made) => replayedResult(context, made, 201),
})

const updateRoute = (method: 'put' | 'patch'): Operation =>
  itemOperation(formationKind, {
    id: method === 'put' ? 'replaceFormation' : 'updateFormation',
    method,
    path: `${path}/{formation_id}`,
    summary: method === 'put' ? 'Replace the template of a formation' : 'Update a formation',
    description:
      'Deploys the given template or saved plan. Without either, deploys the stored template again, which reverts manual changes. An update of only metadata or termination protection changes no resource. Returns 200 when the deploy has ended, whether it succeeded or failed (see `status`).',
    tag,
    action: 'formations:UpdateFormation',
    starts: { kind: 'formation', field: 'id' },
    query: Wait,
    body: FormationPatch,
    bodyLimit,
    waiting,
    checkedBy: 'planFormation',
    answers: { 200: FormationWithWarnings, 202: FormationWithWarnings },
    raises: [
      ...raises,
      'FORMATION_OPERATION_IN_PROGRESS',
      'FORMATION_CONFLICT',
      'FORMATION_HAS_DEPENDENTS',
      'FORMATION_PLAN_STALE',
      'PRECONDITION_FAILED',
    ],
    transaction: false,
    run: context => updateFormation(context, context.resource, context.body, context.query.wait !== false),
  })

const remove = itemOperation(formationKind, {
  id: 'deleteFormation',
  method: 'delete',
  path: `${path}/{formation_id}`,
  summary: 'Delete a formation',
  description:
    'Deletes its resources in reverse dependency order; resources with the deletion policy `retain` stay. All deletes are tried first in a transaction that is rolled back: if one is refused, nothing is deleted and FORMATION_DELETE_FAILED is returned.',
  tag,
  action: 'formations:DeleteFormation',
  starts: { kind: 'formation', field: 'id' },
  query: Wait,
  waiting: { ...waiting, done: ['deleted'], failed: ['delete_failed', 'active', 'failed'] },
  answers: { 200: z.object({ success: z.literal(true).describe('Always true') }), 202: FormationWithResources },
  raises: [
    'FORBIDDEN',
    'FORMATION_DELETE_FAILED',
    'FORMATION_OPERATION_IN_PROGRESS',
    'FORMATION_PROTECTED',
    'FORMATION_HAS_DEPENDENTS',
  ],
  transaction: false,
  run: context => deleteFormation(context, context.resource, context.query.wait !== false),
})

const drift = itemOperation(formationKind, {
  id: 'getFormationDrift',
  method: 'get',
  path: `${path}/{formation_id}/drift`,
  summary: 'Get the drift of a formation',
  description:
    'Reports resources that were changed or deleted outside the formation since its last deploy. Write-only values and the fields in `ignore_fields` are not compared.',
  tag,
  action: 'formations:PlanFormation',
  answers: { 200: Drift },
  raises: ['FORMATION_HANDLER_FAILED'],
  run: ({ services, caller, resource: formation }) => getDrift(services, caller, formation),
})

const importResource = formations.action('import', {
  id: 'importFormationResource',
  summary: 'Import a resource into a formation',
  description:
    'The template must declare the logical ID with the type of the resource, and the formation must not manage a resource under it yet. The import does not change the resource; the next deploy does. Also requires the action that updates the resource.',
  action: 'formations:UpdateFormation',
  body: FormationImportInput,
  answers: { 200: FormationWithResources },
  raises: ['FORBIDDEN', 'FORMATION_OPERATION_IN_PROGRESS', 'FORMATION_HANDLER_FAILED', 'RESOURCE_NOT_FOUND'],
  async run(context) {
    const { tx, services, caller, body, resource: formation } = context
    await adoptResource(tx, services, caller, formation.id, body)
    return presentFormation(context, formation, {}, tx)
  },
})

const exportTemplate = operation({
  id: 'exportTemplate',
  method: 'post',
  path: `${path}/export`,
  summary: 'Export resources as a template',
  description:
    'IDs of exported resources become references; IDs of other resources and write-only values become parameters. Requires the read action of each resource. Without a selection, exports the configuration of the project: no API keys, conversations and sessions, and content only with `include`.',
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
  summary: 'List operations of a formation',
  description: 'Oldest first, each with its plan and its events in order.',
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
  summary: 'Stream operation events',
  description:
    'Starts with the first event of the operation, or resumes after `Last-Event-ID`. The last event is the operation itself.',
  tag,
  action: 'formations:ListFormationEvents',
  produces: 'text/event-stream',
  stream: formationEvents,
  answers: { 200: null },
  raises: ['RESOURCE_NOT_FOUND'],
  async run(context) {
    const { resource: formation, params, db, request } = context
    const row = await findOperation(db, params.operation_id)
    if (row?.formation_id !== formation.id) return raise('RESOURCE_NOT_FOUND', { meta: { id: params.operation_id } })
    const seen = Number(request.headers['last-event-id'] ?? 0)
    return streamOperation(context, row, Number.isSafeInteger(seen) && seen > 0 ? seen : 0)
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
    present: context => presentFormation(context, context.resource),
  }),
  updateRoute('patch'),
  updateRoute('put'),
  remove,
  drift,
  importResource,
  exportTemplate,
  listEvents,
  stream,
]
