import { z } from 'zod'
import { type Kind, kind } from '#core/api/kind.ts'
import { projectField, record } from '#core/api/record.ts'
import type { EventSchema, EventStream } from '#core/api/streams.ts'
import { FailedEvent, streamEvent } from '#core/api/streams.ts'
import { withWarnings } from '#core/api/warnings.ts'
import { RecordedFailure, raise } from '#core/base/errors.ts'
import { type Queryable, sql } from '#core/db/sql.ts'
import { MAX_RESOURCES } from '../template/shape.ts'

/** Formations: sets of resources, each declared by one template. */

export const FORMATION_STATUSES = [
  'creating',
  'active',
  'updating',
  'failed',
  'deleting',
  'deleted',
  'delete_failed',
] as const
export type FormationStatus = (typeof FORMATION_STATUSES)[number]

/** Statuses of a formation with an active operation. */
export const BUSY_STATUSES: readonly FormationStatus[] = ['creating', 'updating', 'deleting']

export const RESOURCE_STATUSES = ['pending', 'created', 'updated', 'deleted', 'failed'] as const
export const OPERATION_TYPES = ['create', 'update', 'delete'] as const
const RESOURCE_ACTIONS = [
  'create',
  'update',
  'delete',
  'no-op',
  'rollback',
  'rollback-skipped',
  'replace',
  'replace-cleanup',
  'replace-retained',
] as const
export type EventAction = (typeof RESOURCE_ACTIONS)[number]

const anObject = z.record(z.string(), z.unknown())
const logical_id = z.string().describe('Name of the resource in the template')
const resource_type = z.string().describe('Type of the resource')

export const FormationResource = z
  .object({
    id: z.string().describe('ID of the entry'),
    logical_id,
    resource_type,
    physical_resource_id: z
      .string()
      .nullable()
      .describe('ID of the resource. Null before it is created and after it is deleted.'),
    status: z.enum(RESOURCE_STATUSES).describe('Result of the last change to the resource'),
  })
  .meta({ id: 'FormationResource' })
export type FormationResource = z.output<typeof FormationResource>

const NoEcho = z
  .object({ no_echo: z.literal(true).describe('Always true: the value is hidden') })
  .meta({ id: 'NoEcho' })

const fields = {
  name: z.string().describe('Name, unique in the project'),
  template: anObject.describe('Template as written. Write-only values are replaced by `{ "no_echo": true }`.'),
  outputs: z
    .record(z.string(), z.union([z.string(), NoEcho]))
    .nullable()
    .describe('Outputs of the last successful deploy. Null before the first one.'),
  status: z.enum(FORMATION_STATUSES).describe('Status of the formation and its latest operation'),
  metadata: z.unknown().nullable().describe('Custom annotations'),
  resolved_metadata: z.unknown().nullable().describe('`metadata` of the template with expressions resolved'),
  resolved_parameters: z
    .record(z.string(), z.string())
    .nullable()
    .describe('Parameter values of the last deploy. `***` for parameters with `no_echo`.'),
  error: RecordedFailure.nullable().describe('Failure of the last operation. Null if it succeeded.'),
  termination_protection: z.boolean().describe('Whether the formation is protected from deletion'),
}

export const Formation = record('Formation', fields)

/** Representation of a formation in single reads and writes. */
export const FormationWithResources = Formation.extend({
  resources: z.array(FormationResource).describe('Resources in dependency order, including deleted ones'),
}).meta({ id: 'FormationWithResources' })

/** Answer of a deploy. */
export const FormationWithWarnings = withWarnings(FormationWithResources, 'FormationWithWarnings')

/** Outputs that are read for each response: the tracked resource and its attribute. */
const ReadOutputs = z.record(z.string(), z.object({ resource: z.string(), attribute: z.string() }))
export type ReadOutputs = z.output<typeof ReadOutputs>

const hidden = {
  sealed_values: z.string().nullable(),
  operation_id: z.string(),
  read_outputs: ReadOutputs.nullable(),
}
const FormationRow = Formation.extend(hidden)
export type FormationRow = z.output<typeof FormationRow>

type FormationVerb = 'deployed' | 'failed' | 'deleted' | 'delete_failed' | 'drifted'

export const formationKind: Kind<FormationRow, FormationVerb> = kind({
  name: 'formation',
  prefix: 'form',
  table: 'formations',
  record: Formation,
  hidden,
  // A deleted formation is retained only for its operations.
  find: (db: Queryable, id: string, lock = false): Promise<FormationRow | null> =>
    db.maybeOne(formationKind.sql`
      select ${formationKind.columns} from formations t where t.id = ${id} and t.status <> 'deleted'
      ${lock ? sql.fragment`for update of t` : sql.fragment``}`),
  listed: ['name', 'status', 'updated_at'],
  events: ['deployed', 'failed', 'deleted', 'delete_failed', 'drifted'],
  unique: {
    formations_name: ({ name }) => raise('NAME_CONFLICT', { meta: { field: 'name', name } }),
  },
})

export const FormationEvent = z
  .object({
    timestamp: z.iso.datetime().describe('Time of the event'),
    logical_id,
    resource_type,
    action: z.enum(RESOURCE_ACTIONS).describe('Action on the resource'),
    status: z.enum(['succeeded', 'failed']).describe('Result of the action'),
    physical_resource_id: z.string().nullable().describe('ID of the resource'),
    error: RecordedFailure.nullable().describe('Failure of the action. Null if it succeeded.'),
  })
  .meta({ id: 'FormationEvent' })
export type FormationEvent = z.output<typeof FormationEvent>

const PLAN_ACTIONS = ['create', 'update', 'delete', 'no-op'] as const

export const Overwrite = z
  .object({
    field: z.string().describe('Property that was changed outside the formation'),
    changed_by: z
      .string()
      .nullable()
      .describe('Principal that changed it. Null if the audit log has no entry for the change.'),
    changed_at: z.string().nullable().describe('Time of the change. Null if the audit log has no entry for it.'),
  })
  .meta({ id: 'FormationOverwrite' })
export type Overwrite = z.output<typeof Overwrite>

export const PlanChange = z
  .object({
    logical_id,
    resource_type,
    action: z.enum(PLAN_ACTIONS).describe('Action of a deploy on the resource'),
    physical_resource_id: z.string().optional().describe('ID of the current resource'),
    replaces: z.boolean().optional().describe('Whether the resource is replaced by a new one'),
    diff: z
      .object({
        desired: anObject.describe('Values in the template. Expressions without a value yet are unresolved.'),
        current: anObject.nullable().describe('Current values. Null if the resource does not exist.'),
      })
      .optional()
      .describe('Properties that differ'),
    overwrites: z
      .array(Overwrite)
      .optional()
      .describe('Properties that were changed outside the formation since the last deploy'),
  })
  .meta({ id: 'FormationPlanChange' })
export type PlanChange = z.output<typeof PlanChange>

export const DeniedAction = z
  .object({ logical_id, resource_type, action: z.string().describe('Action that the caller is not allowed') })
  .meta({ id: 'FormationDeniedAction' })
export type DeniedAction = z.output<typeof DeniedAction>

export const FormationPlan = withWarnings(
  z.object({
    changes: z.array(PlanChange).describe('Changes of a deploy, in order'),
    unauthorized_actions: z
      .array(DeniedAction)
      .optional()
      .describe('Actions that the deploy requires and the caller is not allowed'),
    plan_id: z.string().optional().describe('ID of the saved plan'),
    expires_at: z.iso.datetime().optional().describe('Time at which the saved plan expires'),
  }),
  'FormationPlan',
)
export type FormationPlan = z.output<typeof FormationPlan>

export const OPERATION_STATUSES = ['pending', 'running', 'succeeded', 'failed'] as const

export const FormationOperation = z
  .object({
    id: z.string().describe('ID of the operation'),
    operation_type: z.enum(OPERATION_TYPES).describe('Type of the operation'),
    status: z.enum(OPERATION_STATUSES).describe('Status of the operation'),
    plan: z.array(PlanChange).nullable().describe('Planned changes. Null for a delete.'),
    events: z.array(FormationEvent).nullable().describe('Events of the operation so far, in order'),
    error: RecordedFailure.nullable().describe('Failure of the operation, or of the cleanup after its replacements'),
    created_at: z.iso.datetime(),
    updated_at: z.iso.datetime(),
  })
  .meta({ id: 'FormationOperation' })
export type FormationOperation = z.output<typeof FormationOperation>

const template = z
  .unknown()
  .refine(value => value !== undefined, { message: 'is required', params: { code: 'REQUIRED' } })
  .describe('Template: an object, or a string in YAML or JSON')
  .meta({ anyOf: [{ type: 'object' }, { type: 'string' }] })
const parameters = z
  .record(z.string(), z.string())
  .describe('Parameter values by name. An empty string counts as omitted.')
const import_resources = z
  .record(z.string(), z.string().min(1).max(255))
  .refine(ids => Object.keys(ids).length <= MAX_RESOURCES, { message: `must have at most ${MAX_RESOURCES} entries` })
  .describe(
    'IDs of existing resources of the project that the formation takes over instead of creating them, by their names in the template',
  )
const metadata = z.unknown().describe('Custom annotations, without expressions')
const termination_protection = z.boolean().describe('Whether to protect the formation from deletion')

const EXAMPLE = {
  resources: {
    Provider: { type: 'ai_provider', properties: { name: 'Demo', provider: 'openai', default_model: 'demo' } },
    Agent: { type: 'agent', properties: { name: 'Support', ai_provider_id: { ref: 'Provider' } } },
  },
  outputs: { agent_id: { ref: 'Agent' } },
}

export const FormationInput = z
  .strictObject({
    project_id: projectField,
    name: z.string().trim().min(1).max(200).describe('Name, unique in the project'),
    template,
    parameters: parameters.optional(),
    import_resources: import_resources.optional(),
    metadata: metadata.optional(),
    termination_protection: termination_protection.optional(),
  })
  .meta({ id: 'FormationInput', example: { name: 'support', template: EXAMPLE } })
export type FormationInput = z.output<typeof FormationInput>

export const FormationPatch = z
  .strictObject({
    template: template.optional().describe('Template that replaces the stored one. Defaults to the stored template.'),
    parameters: parameters.optional(),
    import_resources: import_resources.optional(),
    metadata: metadata.optional(),
    termination_protection: termination_protection.optional(),
    plan_id: z
      .string()
      .optional()
      .describe('ID of a saved plan to apply. Cannot be combined with `template` or `parameters`.'),
    force_conflicts: z
      .boolean()
      .optional()
      .describe('Whether to overwrite changes made outside the formation since the last deploy'),
  })
  .meta({ id: 'FormationPatch', example: { template: EXAMPLE } })
export type FormationPatch = z.output<typeof FormationPatch>

export const ValidateTemplateInput = z
  .strictObject({
    project_id: projectField.describe(
      'ID of the project in which to try the creates of the template. Default: the project that the credential is bound to; otherwise nothing is tried.',
    ),
    template,
    parameters: parameters
      .optional()
      .describe('Parameter values by name. If given, even empty, missing parameters are errors.'),
  })
  .meta({ id: 'FormationValidateInput', example: { template: EXAMPLE } })

const TemplateProblem = z
  .object({
    path: z.string().describe('Path in the template'),
    message: z.string().describe('Description of the problem'),
  })
  .meta({ id: 'TemplateProblem' })

export const TemplateValidation = z
  .object({
    valid: z.boolean().describe('Whether the template has no errors'),
    errors: z.array(TemplateProblem).describe('Problems that a deploy would refuse'),
    warnings: z
      .array(TemplateProblem)
      .describe(
        'Parameters without a default value, addresses that are blocked, and resources that were not tried in the project',
      ),
  })
  .meta({ id: 'FormationValidation' })

export const PlanInput = z
  .strictObject({
    project_id: projectField.describe('ID of the project of the formation'),
    template: template
      .optional()
      .describe('Template to plan. Defaults to the stored template, so that the plan reverts drift.'),
    formation_id: z
      .string()
      .optional()
      .describe('ID of the formation to update. If omitted, the plan is for a new formation.'),
    parameters: parameters.optional(),
    import_resources: import_resources.optional(),
  })
  .meta({ id: 'FormationPlanInput', example: { template: EXAMPLE } })

export const FormationImportInput = z
  .strictObject({
    logical_id: z.string().describe('Name of the resource in the template'),
    physical_resource_id: z.string().describe('ID of an existing resource of the project'),
  })
  .meta({
    id: 'FormationImportInput',
    example: { logical_id: 'Agent', physical_resource_id: 'agent_01k5p3vd7r9hj2x8m4qcw6tz0e' },
  })

const RESOURCE_DRIFTS = ['in_sync', 'drifted', 'missing', 'not_supported'] as const

export const ResourceDrift = z
  .object({
    logical_id,
    resource_type,
    status: z
      .enum(RESOURCE_DRIFTS)
      .describe(
        '`missing` - the resource was deleted outside the formation; `not_supported` - its handler cannot read resources',
      ),
    diff: z
      .object({
        desired: anObject.describe('Deployed values'),
        current: anObject.describe('Current values'),
      })
      .optional()
      .describe('Properties that differ. Omitted for callers that may not read the resource.'),
  })
  .meta({ id: 'FormationResourceDrift' })
export type ResourceDrift = z.output<typeof ResourceDrift>

export const Drift = z
  .object({
    drifted: z.boolean().describe('Whether any resource is drifted or missing'),
    resources: z.array(ResourceDrift).describe('Resources of the formation'),
  })
  .meta({ id: 'FormationDrift' })
export type Drift = z.output<typeof Drift>

export const FormationExportInput = z
  .strictObject({
    project_id: projectField,
    resources: z
      .array(z.string().min(1).max(255))
      .min(1)
      .max(500)
      .optional()
      .describe('IDs of the resources to export. Defaults to the configuration of the project.'),
    types: z
      .array(z.string().min(1).max(100))
      .min(1)
      .max(100)
      .optional()
      .describe('Types to export. Defaults to all types of configuration.'),
    include: z
      .array(z.literal('content'))
      .max(1)
      .optional()
      .describe(
        'Whether an export without a selection includes content: files, documents, end users, facts and items of datasets',
      ),
    formation_id: z.string().optional().describe('ID of a formation whose resources to export'),
  })
  .meta({ id: 'FormationExportInput', example: { types: ['agent', 'ai_provider', 'tool'] } })

export const ExportedTemplate = z
  .object({
    template: anObject.describe('Template that creates the same resources'),
    parameters: z
      .record(z.string(), z.string())
      .describe('Parameter values for this project, without write-only values'),
    warnings: z.array(z.string()).describe('Properties that the template omits or changes'),
  })
  .meta({ id: 'ExportedTemplate' })

export const formationEvents: EventStream = {
  name: 'FormationStreamEvent',
  events: [
    streamEvent('FormationResourceEvent', 'resource', 'An action on a resource', FormationEvent),
    streamEvent('FormationOperationEvent', 'operation', 'The ended operation', FormationOperation),
    FailedEvent,
  ] as EventSchema[],
  last: ['operation', 'error'],
  resume: 'streamFormationOperation',
}

/** Raises FORMATION_OPERATION_IN_PROGRESS for a formation with an active operation. */
export function refuseBusy({ status, operation_id, id }: FormationRow): void {
  if (BUSY_STATUSES.includes(status))
    raise('FORMATION_OPERATION_IN_PROGRESS', {
      message: `Operation ${operation_id} of ${id} is still active`,
      meta: { operation_id },
    })
}
