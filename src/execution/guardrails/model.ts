import { z } from 'zod'
import { Author } from '../../core/api/authors.ts'
import { jsonOrJsonText } from '../../core/api/json-text.ts'
import { kind } from '../../core/api/kind.ts'
import { createBody, patchBody, record } from '../../core/api/record.ts'
import { withWarnings } from '../../core/api/warnings.ts'

/** How strictly a call is treated: harmless, under a guard, by a person, never. */
export const CLASSES = ['A', 'B', 'C', 'D'] as const
export type Class = (typeof CLASSES)[number]

export const DECISIONS = ['execute', 'route_to_approval', 'tripwire', 'blocked'] as const
export type GuardrailDecision = (typeof DECISIONS)[number]

export const GUARDRAIL_SCOPES = ['project', 'agent', 'tool'] as const
export type GuardrailScope = (typeof GUARDRAIL_SCOPES)[number]

/** Seconds that an approval waits where no document says otherwise. */
export const APPROVAL_SECONDS = 86_400

export const GuardrailDocument = z
  .strictObject({
    // What is no class and no expression is refused with the field it stands in (document.ts).
    class: z
      .unknown()
      .refine(value => value !== undefined, 'is required')
      .describe('A, B, C or D, or JSON Logic over `args`, `context` and `runtime` that gives one'),
    default_class: z.enum(CLASSES).optional().describe('The class where the expression gives none; default C'),
    guard: z.unknown().optional().describe('JSON Logic that must hold for calls of class B'),
    escalate: z.boolean().optional().describe('A guard that does not hold asks a person in place of stopping the call'),
    expires_in: z.int().min(1).max(31_536_000).optional().describe('Seconds that an approval waits; default 86,400'),
    forbid_self_approval: z
      .boolean()
      .optional()
      .describe('Whoever started the chain that a call belongs to may not resolve its approval'),
  })
  .meta({ id: 'GuardrailDocument' })
export type GuardrailDocument = z.output<typeof GuardrailDocument>

const fields = {
  name: z.string().trim().min(1).max(255).describe('Name to show'),
  description: z.string().max(16_384).nullable().describe('What the guardrail is for'),
  document: jsonOrJsonText(GuardrailDocument).describe('The rules; replaced whole'),
  context_tool_id: z
    .string()
    .min(1)
    .max(64)
    .nullable()
    .describe('Tool of the project that is called before a call is judged; what it answers is `context`'),
  context_mode: z
    .enum(['merge', 'replace'])
    .nullable()
    .describe('Whether the answer of the context tool is laid over the context of the caller, or replaces it'),
}

export const Guardrail = record('Guardrail', {
  ...fields,
  version: z.int().describe('Counts the changes of the document, from 1'),
  document: z.record(z.string(), z.unknown()),
})

/** What a write of a guardrail answers. */
export const GuardrailWithWarnings = withWarnings(Guardrail, 'GuardrailWithWarnings')

const version_label = z.string().trim().min(1).max(255).optional().describe('Label of the version that the write makes')

export const GuardrailInput = createBody('GuardrailInput', { ...fields, version_label }, ['name', 'document'], {
  name: 'Refunds',
  document: { class: {} },
})

export const GuardrailPatch = patchBody('GuardrailPatch', { ...fields, version_label })

export const GuardrailVersion = z
  .object({
    id: z.string(),
    guardrail_id: z.string(),
    version: z.int(),
    config: z.record(z.string(), z.unknown()).describe('`document` as it stood'),
    label: z.string().nullable(),
    created_by: z.string().nullable().describe('User who wrote it; of a key its owner; null for the deployment'),
    created_at: z.iso.datetime(),
  })
  .meta({ id: 'GuardrailVersion' })

export const RestoreGuardrailInput = z
  .strictObject({
    label: version_label.describe('Label of the new version; default `restored from v<n>`'),
  })
  .meta({ id: 'GuardrailRestoreInput' })

const anObject = z.record(z.string(), z.unknown())

export const EvaluateInput = z
  .strictObject({
    args: anObject.optional().describe('Arguments of the call, `args`; default none'),
    guardrail_context: anObject.optional().describe('What a caller would give as `context`; default nothing'),
    tool_id: z
      .string()
      .min(1)
      .max(64)
      .optional()
      .describe('Tool that is called, for `runtime.tool` and `runtime.action`'),
    document: jsonOrJsonText(GuardrailDocument).optional().describe('Rules to try in place of those of the guardrail'),
  })
  .meta({ id: 'GuardrailEvaluateInput' })

const evaluated = {
  guardrail_id: z.string(),
  guardrail_version: z.int().nullable().describe('Null for a guardrail that is gone, and for a document that is tried'),
  scope: z.enum(GUARDRAIL_SCOPES).describe('What the guardrail was attached to'),
  tool: z.string().nullable().describe('Name of the tool'),
  action: z.string().nullable(),
  class: z.enum(CLASSES),
  decision: z.enum(DECISIONS),
  guard_result: z.boolean().nullable().describe('Whether the guard held; null unless the class is B'),
  context_source: z.enum(['caller', 'tool', 'merged', 'none']).describe('Where the context of the rules came from'),
  context_snapshot: anObject.describe('What the document reads, by its full path; null for what is missing'),
  agent_id: z.string().nullable(),
  orchestration_run_id: z.string().nullable(),
  generation_id: z.string().nullable(),
}

/** What one guardrail says of one call. */
export const Evaluation = z
  .object({ kind: z.literal('guardrail_evaluation'), ...evaluated })
  .meta({ id: 'GuardrailEvaluation' })
export type Evaluation = z.output<typeof Evaluation>

/** The same of a call that was made, as it is kept. */
export const StoredEvaluation = record(
  'StoredGuardrailEvaluation',
  {
    ...evaluated,
    tool_id: z.string().nullable(),
    approval_id: z.string().nullable().describe('The approval that was filed in place of the call'),
  },
  { updated: false },
)

export const guardrailKind = kind({
  name: 'guardrail',
  prefix: 'guard',
  table: 'guardrails',
  missing: 'GUARDRAIL_NOT_FOUND',
  references: [
    { kind: 'project', column: 'project_id', on_delete: 'cascade' },
    // The tool may go: what the document reads of its answer is missing then.
    { kind: 'tool', column: 'context_tool_id', on_delete: 'null' },
  ],
  record: Guardrail,
  hidden: { author: Author },
  events: ['created', 'updated', 'deleted', 'tripwire'],
  eventAliases: { tripwire: ['guardrail.tripwire'] },
  eventNotes:
    'tripwire adds tool_id, tool_name, action, guardrail_version, orchestration_run_id, node_id, agent_id, generation_id',
})

export type GuardrailRow = z.output<typeof guardrailKind.row>

export const evaluationKind = kind({
  name: 'guardrail_evaluation',
  prefix: 'gev',
  table: 'guardrail_evaluations',
  counted: false,
  countKept: true,
  record: StoredEvaluation,
  authorize: ({ guardrail_id }) => ({ type: 'guardrail', id: guardrail_id }),
})

export type EvaluationRow = z.output<typeof evaluationKind.row>
