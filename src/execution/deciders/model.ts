import { z } from 'zod'
import { Author } from '#core/api/authors.ts'
import { kind } from '#core/api/kind.ts'
import { MetadataBag } from '#core/api/metadata.ts'
import { createBody, patchBody, projectField, record } from '#core/api/record.ts'
import { RecordedFailure, raise } from '#core/base/errors.ts'
import { sealedColumn } from '#core/db/sealed.ts'
import { sql } from '#core/db/sql.ts'
import { expectedVersion, versionLabel } from '#core/resources/version.ts'
import { versioned } from '#core/resources/versioned.ts'
import { DecisionAnswer, Question, Questions } from './questions.ts'

const id = z.string().min(1).max(255)

const backendFields = {
  agent_id: id
    .nullable()
    .describe('Agent without tools that answers the questions. Exactly one of agent_id and tool_id must be set.'),
  tool_id: id.nullable().describe('Tool of type http or pipeline that answers the questions'),
}

const fields = {
  name: z.string().trim().min(1).max(255).describe('Name, unique in the project'),
  description: z.string().max(16_384).nullable().describe('Purpose of the decider'),
  ...backendFields,
  escalate_below: z
    .number()
    .min(0)
    .max(1)
    .nullable()
    .describe('Confidence below which an answer files an exception; null for none'),
  questions: Questions,
}

export const Decider = record('Decider', {
  ...fields,
  version: z.int().describe('Version number of the questions, starting at 1'),
  questions: z.array(Question).describe('Questions that the decider answers'),
})

export const DeciderInput = createBody(
  'DeciderInput',
  { ...fields, version_label: versionLabel },
  ['name', 'questions'],
  {
    name: 'Refunds',
    questions: [{ type: 'predicate', name: 'is_angry', instructions: 'Is the customer angry?' }],
    agent_id: 'agent_01k5p3vd7r9hj2x8m4qcw6tz0e',
  },
)

export const DeciderPatch = patchBody('DeciderPatch', {
  ...fields,
  version_label: versionLabel,
  expected_version: expectedVersion,
})

export const DECISION_STATUSES = ['queued', 'running', 'completed', 'failed'] as const

export const Decision = record('Decision', {
  decider_id: z.string().nullable().describe('Null for an inline decision'),
  decider_version: z.int().nullable().describe('Version of the decider that was used'),
  questions: z
    .array(Question)
    .nullable()
    .describe('Questions of an inline decision; questions of a decider are in its version'),
  agent_id: z.string().nullable().describe('Agent that answers'),
  tool_id: z.string().nullable().describe('Tool that answers'),
  status: z.enum(DECISION_STATUSES),
  answers: z
    .array(DecisionAnswer)
    .nullable()
    .describe('Answers in the order of the questions; null until the decision completes'),
  answers_by_name: z.record(z.string(), DecisionAnswer).nullable().describe('Answers by question name'),
  error: RecordedFailure.nullable(),
  generation_id: z.string().nullable().describe('ID of the agent turn'),
  metadata: z.record(z.string(), z.unknown()).nullable(),
})

/** Accepts anything: validation depends on the form of the input (input.ts). */
const InputField = z
  .unknown()
  .refine(value => value !== undefined, { message: 'is required', params: { code: 'REQUIRED' } })
  .describe('Input of the decision: a text, user messages with texts and images, or any other JSON. At most 10 MiB.')

const inputFields = {
  input: InputField,
  metadata: MetadataBag.nullish().describe('Custom data stored with the decision'),
  wait: z.boolean().nullish().describe('Whether to respond after the decision has settled instead of immediately'),
}

export const DecisionInput = z.strictObject(inputFields).meta({ id: 'DecisionInput' })

export const InlineDecisionInput = z
  .strictObject({
    project_id: projectField,
    questions: Questions,
    agent_id: backendFields.agent_id.optional(),
    tool_id: backendFields.tool_id.optional(),
    ...inputFields,
  })
  .meta({
    id: 'InlineDecisionInput',
    example: {
      questions: [{ type: 'predicate', name: 'is_angry', instructions: 'Is the customer angry?' }],
      input: { text: 'Where is my order?' },
      agent_id: 'agent_01k5p3vd7r9hj2x8m4qcw6tz0e',
    },
  })

export const BatchInput = z
  .strictObject({
    inputs: z
      .array(z.strictObject({ input: InputField, metadata: inputFields.metadata }))
      .min(1)
      .max(50)
      .describe('Inputs of the decisions. 1 to 50 inputs, at most 10 MiB in total.'),
  })
  .meta({ id: 'DecisionBatchInput' })

export const Batch = z.object({ data: z.array(Decision) }).meta({ id: 'DecisionBatch' })

export const deciderKind = kind({
  name: 'decider',
  prefix: 'dcd',
  table: 'deciders',
  references: [
    { kind: 'project', column: 'project_id', on_delete: 'cascade' },
    { kind: 'agent', column: 'agent_id', on_delete: 'block' },
    { kind: 'tool', column: 'tool_id', on_delete: 'block' },
  ],
  record: Decider,
  hidden: { author: Author },
  events: ['created', 'updated', 'deleted'],
  unique: { deciders_name: ({ name }) => raise('NAME_CONFLICT', { meta: { field: 'name', name } }) },
})
export type DeciderRow = z.output<typeof deciderKind.row>

export const deciderVersions = versioned({ kind: deciderKind, prefix: 'dcd_ver', fields: ['questions'] })

export const decisionKind = kind({
  name: 'decision',
  prefix: 'dec',
  table: 'decisions',
  countKept: true,
  references: [{ kind: 'project', column: 'project_id', on_delete: 'cascade' }],
  record: Decision,
  computed: {
    questions: sql.fragment`case when t.decider_id is null then t.asked end`,
    answers_by_name: sql.fragment`(
      select json_object_agg(a.value ->> 'name', a.value order by a.ordinality)
      from json_array_elements(t.answers) with ordinality a)`,
  },
  hidden: {
    /** Questions of the decider, or inline ones. */
    asked: z.array(Question),
    agent_version: z.int().nullable(),
  },
  events: ['completed', 'failed'],
  eventNotes: 'failed carries error',
})
export type DecisionRow = z.output<typeof decisionKind.row>

/** Notification channel for settled decisions; the payload is the decision id. */
export const DECISION_SETTLED_CHANNEL = 'muster_decisions'

export const isDecisionSettled = ({ status }: Pick<DecisionRow, 'status'>): boolean =>
  status === 'completed' || status === 'failed'

/** Sealed inputs, re-encrypted when the encryption key changes. */
export const sealedInputs = ['decision_inputs', 'decision_inputs_unlogged'].map(table =>
  sealedColumn({
    table,
    column: 'sealed',
    kind: 'decision_input',
    id: sql.fragment`decision_id`,
    project: sql.fragment`(select d.project_id from decisions d where d.id = decision_id)`,
  }),
)

/** Binding of the sealed input of a decision. */
export const decisionSeal = ({ id, project_id }: Pick<DecisionRow, 'id' | 'project_id'>) => ({
  kind: 'decision_input',
  id,
  project_id,
})
