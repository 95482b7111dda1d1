import { z } from 'zod'
import { RecordedFailure, raise } from '../core/api/errors.ts'
import { type Kind, kind } from '../core/api/kind.ts'
import { projectField, record } from '../core/api/record.ts'
import type { EventSchema, EventStream } from '../core/api/streams.ts'
import { FailedEvent, streamEvent } from '../core/api/streams.ts'
import { type Queryable, sql } from '../core/db/sql.ts'

/** A formation is a set of resources that one template declares. */

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

/** Statuses of a formation that an operation works on. */
export const BUSY: readonly FormationStatus[] = ['creating', 'updating', 'deleting']

export const RESOURCE_STATUSES = ['pending', 'created', 'updated', 'deleted', 'failed'] as const
export const OPERATION_TYPES = ['create', 'update', 'delete'] as const
export const RESOURCE_ACTIONS = [
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
    id: z.string().describe('Id of the entry'),
    logical_id,
    resource_type,
    physical_resource_id: z
      .string()
      .nullable()
      .describe('Id of the resource itself; null before it is created and once it is deleted'),
    status: z.enum(RESOURCE_STATUSES).describe('What was last done with it'),
  })
  .meta({ id: 'FormationResource' })
export type FormationResource = z.output<typeof FormationResource>

const NoEcho = z.object({ no_echo: z.literal(true).describe('The value is not shown') }).meta({ id: 'NoEcho' })

const fields = {
  name: z.string().describe('Name, one of a kind in the project'),
  template: anObject.describe('The template as it was written; write-only values read `{ "no_echo": true }`'),
  outputs: z
    .record(z.string(), z.union([z.string(), NoEcho]))
    .nullable()
    .describe('Outputs of the last deploy that succeeded'),
  status: z.enum(FORMATION_STATUSES).describe('Whether its resources are as the template says'),
  metadata: z.unknown().nullable().describe('Annotations of your own'),
  resolved_metadata: z.unknown().nullable().describe('`metadata` of the template with its expressions resolved'),
  resolved_parameters: z
    .record(z.string(), z.string())
    .nullable()
    .describe('Values of the parameters at the last deploy; `***` for those with `no_echo`'),
  error: RecordedFailure.nullable().describe('Why the last operation failed'),
  termination_protection: z.boolean().describe('Whether it is kept from being deleted'),
}

export const Formation = record('Formation', fields)

/** A formation as single reads and writes show it. */
export const FormationWithResources = Formation.extend({
  resources: z
    .array(FormationResource)
    .describe('Resources in the order of their dependencies, with those that were deleted'),
}).meta({ id: 'FormationWithResources' })

/** Outputs that are read when they are shown: the tracked resource, and its attribute. */
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
  // A formation that was deleted is kept for its operations alone.
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
    timestamp: z.iso.datetime().describe('When it happened'),
    logical_id,
    resource_type,
    action: z.enum(RESOURCE_ACTIONS).describe('What was done'),
    status: z.enum(['succeeded', 'failed']).describe('How it ended'),
    physical_resource_id: z.string().nullable().describe('Id of the resource'),
    error: RecordedFailure.nullable().describe('Why it failed'),
  })
  .meta({ id: 'FormationEvent' })
export type FormationEvent = z.output<typeof FormationEvent>

const PLAN_ACTIONS = ['create', 'update', 'delete', 'no-op'] as const

export const Overwrite = z
  .object({
    field: z.string().describe('Property that was changed by another way than the formation'),
    changed_by: z.string().nullable().describe('Principal that changed it; null where the audit log does not say'),
    changed_at: z.string().nullable().describe('When it was changed'),
  })
  .meta({ id: 'FormationOverwrite' })
export type Overwrite = z.output<typeof Overwrite>

export const PlanChange = z
  .object({
    logical_id,
    resource_type,
    action: z.enum(PLAN_ACTIONS).describe('What a deploy would do'),
    physical_resource_id: z.string().optional().describe('Id of the resource as it is'),
    replaces: z.boolean().optional().describe('Whether another resource takes the place of this one'),
    diff: z
      .object({
        desired: anObject.describe(
          'Properties as the template has them; expressions that are not known yet as written',
        ),
        current: anObject.nullable().describe('The same properties as they are; null where the resource is not there'),
      })
      .optional()
      .describe('The properties that differ'),
    overwrites: z
      .array(Overwrite)
      .optional()
      .describe('Properties that somebody else has changed since the last deploy'),
  })
  .meta({ id: 'FormationPlanChange' })
export type PlanChange = z.output<typeof PlanChange>

export const DeniedAction = z
  .object({ logical_id, resource_type, action: z.string().describe('Action that the caller lacks') })
  .meta({ id: 'FormationDeniedAction' })
export type DeniedAction = z.output<typeof DeniedAction>

export const FormationPlan = z
  .object({
    changes: z.array(PlanChange).describe('What a deploy would do, in its order'),
    unauthorized_actions: z
      .array(DeniedAction)
      .optional()
      .describe('Actions that the deploy needs and the caller lacks'),
    plan_id: z.string().optional().describe('Id of the saved plan'),
    expires_at: z.iso.datetime().optional().describe('Until when it can be applied'),
  })
  .meta({ id: 'FormationPlan' })
export type FormationPlan = z.output<typeof FormationPlan>

export const OPERATION_STATUSES = ['pending', 'running', 'succeeded', 'failed'] as const

export const FormationOperation = z
  .object({
    id: z.string().describe('Id of the operation'),
    operation_type: z.enum(OPERATION_TYPES).describe('What it does with the formation'),
    status: z.enum(OPERATION_STATUSES).describe('How far it is'),
    plan: z.array(PlanChange).nullable().describe('What it set out to do'),
    events: z.array(FormationEvent).nullable().describe('What it did so far, in order'),
    error: RecordedFailure.nullable().describe('Why it failed, or what it left behind'),
    created_at: z.iso.datetime(),
    updated_at: z.iso.datetime(),
  })
  .meta({ id: 'FormationOperation' })
export type FormationOperation = z.output<typeof FormationOperation>

const template = z
  .unknown()
  .refine(value => value !== undefined, { message: 'is required', params: { code: 'REQUIRED' } })
  .describe('The template: an object, or a text in YAML or JSON')
  .meta({ anyOf: [{ type: 'object' }, { type: 'string' }] })
const parameters = z
  .record(z.string(), z.string())
  .describe('Values of parameters by their names; an empty text counts as not given')
const metadata = z.unknown().describe('Annotations of your own, without expressions')
const termination_protection = z.boolean().describe('Keep the formation from being deleted')

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
    name: z.string().trim().min(1).max(200).describe('Name, one of a kind in the project'),
    template,
    parameters: parameters.optional(),
    metadata: metadata.optional(),
    termination_protection: termination_protection.optional(),
  })
  .meta({ id: 'FormationInput', example: { name: 'support', template: EXAMPLE } })
export type FormationInput = z.output<typeof FormationInput>

export const FormationPatch = z
  .strictObject({
    template: template
      .optional()
      .describe('The template that takes the place of the stored one; default: deploy that one again'),
    parameters: parameters.optional(),
    metadata: metadata.optional(),
    termination_protection: termination_protection.optional(),
    plan_id: z.string().optional().describe('A saved plan to apply as it is, in place of a template and parameters'),
    force_conflicts: z.boolean().optional().describe('Overwrite what somebody else has changed since the last deploy'),
  })
  .meta({ id: 'FormationPatch', example: { template: EXAMPLE } })
export type FormationPatch = z.output<typeof FormationPatch>

export const ValidateTemplateInput = z
  .strictObject({
    template,
    parameters: parameters.optional().describe('With these, even none, those that are missing are problems too'),
  })
  .meta({ id: 'FormationValidateInput', example: { template: EXAMPLE } })

const TemplateProblem = z
  .object({ path: z.string().describe('Where in the template'), message: z.string().describe('What is wrong there') })
  .meta({ id: 'TemplateProblem' })

export const TemplateValidation = z
  .object({
    valid: z.boolean().describe('Whether a deploy would accept the template'),
    errors: z.array(TemplateProblem).describe('What is wrong'),
    warnings: z.array(TemplateProblem).describe('What a deploy needs beside the template'),
  })
  .meta({ id: 'FormationValidation' })

export const PlanInput = z
  .strictObject({
    project_id: projectField.describe('Project of the formation that the plan is for'),
    template: template
      .optional()
      .describe('The template to plan; default the stored one, which shows what has drifted'),
    formation_id: z.string().optional().describe('Formation that would be updated; without it one is created'),
    parameters: parameters.optional(),
  })
  .meta({ id: 'FormationPlanInput', example: { template: EXAMPLE } })

export const FormationImportInput = z
  .strictObject({
    logical_id: z.string().describe('Name of the resource in the template'),
    physical_resource_id: z.string().describe('Id of the resource of the project that the formation is to manage'),
  })
  .meta({
    id: 'FormationImportInput',
    example: { logical_id: 'Agent', physical_resource_id: 'agent_01k5p3vd7r9hj2x8m4qcw6tz0e' },
  })

export const RESOURCE_DRIFTS = ['in_sync', 'drifted', 'missing', 'not_supported'] as const

export const ResourceDrift = z
  .object({
    logical_id,
    resource_type,
    status: z
      .enum(RESOURCE_DRIFTS)
      .describe('`missing`: it was deleted by another way; `not_supported`: its handler shows no resources'),
    diff: z
      .object({
        desired: anObject.describe('Properties as they were deployed'),
        current: anObject.describe('The same properties as they are'),
      })
      .optional()
      .describe('The properties that differ; left out for callers who may not read the resource'),
  })
  .meta({ id: 'FormationResourceDrift' })
export type ResourceDrift = z.output<typeof ResourceDrift>

export const Drift = z
  .object({
    drifted: z.boolean().describe('Whether a resource differs from what was deployed, or is missing'),
    resources: z.array(ResourceDrift).describe('The resources of the formation'),
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
      .describe('Ids of the resources to export; default those of the project'),
    types: z.array(z.string().min(1).max(100)).min(1).max(100).optional().describe('Only resources of these types'),
    formation_id: z.string().optional().describe('Formation whose resources to export'),
  })
  .meta({ id: 'FormationExportInput', example: { types: ['agent', 'ai_provider', 'tool'] } })

export const ExportedTemplate = z
  .object({
    template: anObject.describe('A template that makes the same resources'),
    parameters: z
      .record(z.string(), z.string())
      .describe('Values of its parameters in this project, without those that are not shown'),
    warnings: z.array(z.string()).describe('What the template leaves out or changes'),
  })
  .meta({ id: 'ExportedTemplate' })

export const formationEvents: EventStream = {
  name: 'FormationStreamEvent',
  events: [
    streamEvent('FormationResourceEvent', 'resource', 'What was done with a resource', FormationEvent),
    streamEvent('FormationOperationEvent', 'operation', 'The operation at its end', FormationOperation),
    FailedEvent,
  ] as EventSchema[],
  last: ['operation', 'error'],
  resume: 'streamFormationOperation',
}
