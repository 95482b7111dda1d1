import { z } from 'zod'
import { Author } from '#core/api/authors.ts'
import { jsonOrJsonText } from '#core/api/json-text.ts'
import { kind } from '#core/api/kind.ts'
import { createBody, patchBody, record } from '#core/api/record.ts'
import { withWarnings } from '#core/api/warnings.ts'
import { invalidateOnCommit } from '#core/db/notified-cache.ts'
import { versionLabel } from '#core/resources/version.ts'
import { versioned } from '#core/resources/versioned.ts'

/** Class of a call: A harmless, B guarded, C requires approval, D blocked. */
export const CLASSES = ['A', 'B', 'C', 'D'] as const
export type Class = (typeof CLASSES)[number]

export const DECISIONS = ['execute', 'route_to_approval', 'tripwire', 'blocked'] as const
export type GuardrailDecision = (typeof DECISIONS)[number]

export const GUARDRAIL_SCOPES = ['project', 'agent', 'tool'] as const
export type GuardrailScope = (typeof GUARDRAIL_SCOPES)[number]

/** Who resolves an approval. */
export const APPROVERS = ['operator', 'end_user'] as const
export type Approver = (typeof APPROVERS)[number]

/** Default lifetime of an approval, in seconds. */
export const APPROVAL_SECONDS = 86_400

export const GuardrailDocument = z
  .strictObject({
    // Invalid classes and expressions are refused with their field (document.ts).
    class: z
      .unknown()
      .refine(value => value !== undefined, 'is required')
      .describe('A, B, C or D, or a JSON Logic expression over `args`, `context` and `runtime` that returns a class'),
    default_class: z.enum(CLASSES).optional().describe('Class if the expression returns none. Default C.'),
    guard: z.unknown().optional().describe('JSON Logic condition for calls of class B'),
    escalate: z
      .boolean()
      .optional()
      .describe('Whether a failed guard requires an approval instead of stopping the call'),
    expires_in: z
      .int()
      .min(1)
      .max(31_536_000)
      .optional()
      .describe('Lifetime of an approval in seconds. Default 86400.'),
    forbid_self_approval: z
      .boolean()
      .optional()
      .describe('Whether users that started the chain of the call are excluded from resolving its approval'),
    approver: z
      .enum(APPROVERS)
      .optional()
      .describe(
        'Who resolves an approval: operator — holders of `approvals:ResolveApproval` (default); end_user — also the end user of the session that proposed the call. If several guardrails require the approval, all must set end_user.',
      ),
    end_user_arguments: z
      .array(z.string().min(1).max(255))
      .max(64)
      .optional()
      .describe('Names of the arguments that the end user sees. Default none.'),
  })
  .meta({ id: 'GuardrailDocument' })
export type GuardrailDocument = z.output<typeof GuardrailDocument>

const fields = {
  name: z.string().trim().min(1).max(255).describe('Display name'),
  description: z.string().max(16_384).nullable().describe('Purpose of the guardrail'),
  document: jsonOrJsonText(GuardrailDocument).describe('Rules of the guardrail. Replaced as a whole.'),
  context_tool_id: z
    .string()
    .min(1)
    .max(64)
    .nullable()
    .describe('Tool of the project that is called before an evaluation; its result is `context`'),
  context_mode: z
    .enum(['merge', 'replace'])
    .nullable()
    .describe(
      "Combination of the tool's result with the caller's context: `merge` — keys of the result take precedence; `replace` — only the result is used.",
    ),
}

export const Guardrail = record('Guardrail', {
  ...fields,
  version: z.int().describe('Version number of the document, starting at 1'),
  document: z.record(z.string(), z.unknown()),
})

/** Response of a guardrail write. */
export const GuardrailWithWarnings = withWarnings(Guardrail, 'GuardrailWithWarnings')

export const GuardrailInput = createBody(
  'GuardrailInput',
  { ...fields, version_label: versionLabel },
  ['name', 'document'],
  {
    name: 'Refunds',
    document: { class: 'C' },
  },
)

export const GuardrailPatch = patchBody('GuardrailPatch', { ...fields, version_label: versionLabel })

const jsonObject = z.record(z.string(), z.unknown())

export const EvaluateInput = z
  .strictObject({
    args: jsonObject.optional().describe('Value of `args`. Default empty.'),
    guardrail_context: jsonObject.optional().describe('Value of `context` from the caller. Default none.'),
    tool_id: z.string().min(1).max(64).optional().describe('Tool of the call, for `runtime.tool` and `runtime.action`'),
    document: jsonOrJsonText(GuardrailDocument).optional().describe('Document to try instead of the stored one'),
  })
  .meta({ id: 'GuardrailEvaluateInput' })

const evaluationFields = {
  guardrail_id: z.string(),
  guardrail_version: z.int().nullable().describe('Null for a deleted guardrail and for a tried document'),
  scope: z.enum(GUARDRAIL_SCOPES).describe('Resource type that the guardrail is attached to'),
  tool: z.string().nullable().describe('Name of the tool'),
  action: z.string().nullable(),
  class: z.enum(CLASSES),
  decision: z.enum(DECISIONS),
  guard_result: z.boolean().nullable().describe('Result of the guard; null unless the class is B'),
  context_source: z.enum(['caller', 'tool', 'merged', 'none']).describe('Source of the context'),
  context_snapshot: jsonObject.describe('Values that the document reads, by full path; null for a missing value'),
  agent_id: z.string().nullable(),
  orchestration_run_id: z.string().nullable(),
  generation_id: z.string().nullable(),
}

/** Evaluation of one call by one guardrail. */
export const Evaluation = z
  .object({ kind: z.literal('guardrail_evaluation'), ...evaluationFields })
  .meta({ id: 'GuardrailEvaluation' })
export type Evaluation = z.output<typeof Evaluation>

/** Stored evaluation of a call. */
const StoredEvaluation = record(
  'StoredGuardrailEvaluation',
  {
    ...evaluationFields,
    tool_id: z.string().nullable(),
    approval_id: z.string().nullable().describe('ID of the approval filed for the call'),
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
    // Deletable: expressions that read its result then find it missing.
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

/** Notification channel for changed and deleted guardrails; the payload is the guardrail id. */
export const guardrailChannel = 'muster_guardrails'

export const guardrailVersions = versioned({
  kind: guardrailKind,
  prefix: 'guard_ver',
  fields: ['document'],
  changed: (tx, { id }) => invalidateOnCommit(tx, guardrailChannel, id),
})

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
