import { z } from 'zod'
import { kind } from '#core/api/kind.ts'
import { timeInput } from '#core/api/lists.ts'
import { metadataBag } from '#core/api/metadata.ts'
import { createBody, patchBody, record } from '#core/api/record.ts'
import { TagInput } from '#core/api/tags.ts'
import { sql, voidStatement } from '#core/db/sql.ts'

export const CASE_STATUSES = ['open', 'in_progress', 'waiting', 'resolved', 'closed'] as const
export type CaseStatus = (typeof CASE_STATUSES)[number]

export const PRIORITIES = ['low', 'normal', 'high', 'urgent'] as const

/** Size limit of `fields` as JSON. */
export const FIELDS_KIB = 256
const MAX_DEPTH = 32

const id = z.string().min(1).max(255)
const time = z.iso.datetime()

/** Principal of the credential that made a change. */
export const CasePrincipal = z.object({ kind: z.enum(['user', 'api_key']), id: z.string() })
export type CasePrincipal = z.output<typeof CasePrincipal>

const Subject = z
  .strictObject({
    type: z.string().min(1).max(255).describe('Type of the subject, for example `order`'),
    id: z.string().min(1).max(255).describe('ID of the subject in its own system'),
    label: z.string().max(255).optional().describe('Display name of the subject'),
  })
  .meta({ id: 'CaseSubject' })

const fields = {
  title: z.string().trim().min(1).max(300).describe('Title of the case'),
  description: z.string().max(65_536).nullable().describe('Description of the case'),
  priority: z.enum(PRIORITIES).describe('Priority of the case. Default normal.'),
  subject: Subject.nullable().describe('Item or person that the case concerns'),
  actor_id: id.nullable().describe('ID of the end user that the case concerns'),
  assignee: z.string().min(1).max(255).nullable().describe('Name or ID of the assignee. Not interpreted.'),
  playbook_id: id.nullable().describe('ID of the default playbook of executions'),
  fields: metadataBag(FIELDS_KIB, MAX_DEPTH).describe(
    'Data that playbooks read and write. An update replaces the given keys; other keys are unchanged.',
  ),
  metadata: metadataBag(16, 8).nullable().describe('Arbitrary client data. Not interpreted.'),
  due_at: timeInput.nullable().describe('Due time. Informational: nothing happens when it passes.'),
}

const external_id = z.string().min(1).max(255).nullable().describe('Client ID of the case, unique in the project')

export const Case = record(
  'Case',
  {
    number: z.int().describe('Number of the case, unique in the project'),
    title: fields.title,
    description: fields.description,
    status: z
      .enum(CASE_STATUSES)
      .describe('Status. Changed by executions and by the resolve, close and reopen operations.'),
    priority: fields.priority,
    subject: fields.subject,
    external_id,
    actor_id: fields.actor_id,
    assignee: fields.assignee,
    playbook_id: fields.playbook_id,
    fields: z.record(z.string(), z.unknown()).describe('Data that playbooks read and write'),
    metadata: z.record(z.string(), z.unknown()).nullable(),
    due_at: time.nullable(),
    outcome: z.string().nullable().describe('Outcome of the case. Null until it is resolved or merged.'),
    outcome_note: z.string().nullable().describe('Note on the outcome'),
    active_execution_id: z.string().nullable().describe('ID of the active playbook execution. Null if there is none.'),
    execution_count: z.int().describe('Number of executions of the case'),
    evidence_count: z.int().describe('Number of pieces of evidence, including withdrawn ones'),
    resolved_at: time.nullable().describe('Time of resolution. Null until the case is resolved.'),
    closed_at: time.nullable(),
    created_by: CasePrincipal.nullable(),
  },
  { tags: true },
)

export const CaseInput = createBody(
  'CaseInput',
  {
    ...fields,
    external_id,
    tags: TagInput.describe('Tags of the case'),
    start_execution: z
      .boolean()
      .describe('Whether to start an execution of the playbook in the same transaction. Default false.'),
    input: metadataBag(1024, MAX_DEPTH).describe('Input of the execution. Allowed only with start_execution.'),
  },
  ['title'],
  { title: 'Order 1042 is late' },
)
export type CaseInput = z.output<typeof CaseInput>

export const CasePatch = patchBody('CasePatch', {
  ...fields,
  tags: TagInput.describe('New tags. They replace the current tags.'),
})

export const caseKind = kind({
  name: 'case',
  prefix: 'case',
  table: 'cases',
  countKept: true,
  references: [
    { kind: 'project', column: 'project_id', on_delete: 'cascade' },
    { kind: 'actor', column: 'actor_id', on_delete: 'null' },
  ],
  record: Case,
  events: ['created', 'updated', 'deleted', 'status_changed'],
  eventNotes: 'updated: `changed` lists the changed fields. status_changed: `from_status` is the previous status.',
})
export type CaseRow = z.output<typeof caseKind.row>

/** Policies refer to parts of a case by the case. */
const ofCase = ({ case_id }: { case_id: string }) => ({ type: 'case', id: case_id })

/** Locks the case of a part. The case is always locked before its parts. */
const lockCaseOf = (table: string) => (db: Parameters<typeof caseKind.find>[0], id: string) =>
  db.query(voidStatement`
    select from cases where id = (select p.case_id from ${sql.identifier([table])} p where p.id = ${id}) for update`)

export const TIMELINE_KINDS = [
  'created',
  'updated',
  'status_changed',
  'comment',
  'execution_started',
  'step_waiting',
  'step_completed',
  'step_failed',
  'step_skipped',
  'execution_completed',
  'execution_failed',
  'execution_cancelled',
  'evidence_added',
  'evidence_withdrawn',
  'link_added',
  'link_removed',
  'approval_resolved',
  'exported',
] as const
export type TimelineKind = (typeof TIMELINE_KINDS)[number]

const PRINCIPAL_KINDS = ['user', 'api_key', 'automation', 'approval'] as const

export const TimelineEntry = record(
  'CaseTimelineEntry',
  {
    case_id: z.string(),
    kind: z.enum(TIMELINE_KINDS).describe('Kind of the entry'),
    principal_kind: z
      .enum(PRINCIPAL_KINDS)
      .describe(
        'Origin of the entry: user, api_key, automation — a playbook execution or a change of a referenced record, approval — a decision on an approval',
      ),
    principal_id: z.string().nullable(),
    playbook_execution_id: z.string().nullable(),
    step_key: z.string().nullable(),
    data: z
      .record(z.string(), z.unknown())
      .describe('Details by kind: old and new values, the text of a comment, or IDs of related records'),
  },
  { project: false, updated: false },
)

export const timelineKind = kind({
  name: 'case_timeline_entry',
  plural: 'case_timeline_entries',
  prefix: 'case_evt',
  table: 'case_timeline',
  references: [{ kind: 'case', column: 'case_id', on_delete: 'cascade' }],
  record: TimelineEntry,
  hidden: { project_id: z.string(), bytes: z.int() },
  authorize: ofCase,
})
export type TimelineRow = z.output<typeof timelineKind.row>

/** Kinds that callers may add. Executions write the others. */
const CALLER_EVIDENCE_KINDS = ['note', 'file', 'link'] as const
const EVIDENCE_KINDS = [...CALLER_EVIDENCE_KINDS, 'output', 'decision', 'approval'] as const

const CONTENT_BYTES = 1024 * 1024
const content = z
  .union([z.string(), metadataBag(1024, 64)])
  .refine(value => typeof value !== 'string' || Buffer.byteLength(value) <= CONTENT_BYTES, 'must be at most 1 MiB')

export const Evidence = record(
  'CaseEvidence',
  {
    case_id: z.string(),
    name: z.string(),
    kind: z
      .enum(EVIDENCE_KINDS)
      .describe(
        'Kind of the evidence: note, file and link — added by callers; output, decision and approval — results of steps',
      ),
    content: z
      .union([z.string(), z.record(z.string(), z.unknown())])
      .nullable()
      .describe('Captured text or object. Null for files and links, and after the content of its turn was purged.'),
    file_id: z.string().nullable(),
    url: z.string().nullable(),
    sha256: z.string().describe('SHA-256 of the content, of the file at the time it was added, or of the url'),
    playbook_execution_id: z.string().nullable(),
    step_key: z.string().nullable(),
    captured_by: CasePrincipal.describe('Principal that added the evidence'),
    withdrawn_at: z.iso.datetime().nullable().describe('Time of withdrawal. Null if it was not withdrawn.'),
    withdrawn_reason: z.string().nullable().describe('Reason for the withdrawal'),
  },
  { project: false, updated: false },
)

export const EvidenceInput = z
  .strictObject({
    name: z.string().trim().min(1).max(200).describe('Name of the evidence'),
    kind: z
      .enum(CALLER_EVIDENCE_KINDS)
      .describe('Kind: note — requires content; file — requires file_id; link — requires url'),
    content: content.optional().describe('Text or object of a note. At most 1 MiB.'),
    file_id: id.optional().describe('ID of a file in the project'),
    url: z
      .url({ protocol: /^https?$/, error: 'must be an http or https url' })
      .max(2048)
      .optional()
      .describe('HTTP or HTTPS URL of a link'),
  })
  .superRefine((input, context) => {
    const required = { note: 'content', file: 'file_id', link: 'url' }[input.kind]
    for (const part of ['content', 'file_id', 'url'] as const)
      if ((input[part] === undefined) === (part === required))
        context.addIssue({
          code: 'custom',
          path: [part],
          message: part === required ? `is required for kind ${input.kind}` : `is not allowed for kind ${input.kind}`,
        })
  })
  .meta({ id: 'CaseEvidenceInput', example: { name: 'Call', kind: 'note', content: 'Called the customer back' } })
export type EvidenceInput = z.output<typeof EvidenceInput>

export const evidenceKind = kind({
  name: 'case_evidence',
  plural: 'case_evidence',
  prefix: 'case_evd',
  table: 'case_evidence',
  references: [{ kind: 'case', column: 'case_id', on_delete: 'cascade' }],
  record: Evidence,
  hidden: { project_id: z.string(), generation_id: z.string().nullable(), bytes: z.int() },
  lockFirst: lockCaseOf('case_evidence'),
  authorize: ofCase,
})
export type EvidenceRow = z.output<typeof evidenceKind.row>

const LINK_TYPES = [
  'task',
  'approval',
  'exception',
  'session',
  'conversation',
  'document',
  'file',
  'generation',
  'orchestration_run',
  'case',
] as const
export type LinkType = (typeof LINK_TYPES)[number]

export const CaseLink = record(
  'CaseLink',
  {
    case_id: z.string(),
    type: z.enum(LINK_TYPES),
    target_id: z.string(),
    target_exists: z.boolean().describe('Whether the linked resource still exists'),
    created_by: CasePrincipal.nullable(),
  },
  { project: false, updated: false },
)

export const LinkInput = z
  .strictObject({
    type: z.enum(LINK_TYPES).describe('Type of the linked resource'),
    target_id: id.describe('ID of the linked resource, which must be in the same project'),
  })
  .meta({ id: 'CaseLinkInput' })

export const linkKind = kind({
  name: 'case_link',
  prefix: 'case_link',
  table: 'case_links',
  references: [{ kind: 'case', column: 'case_id', on_delete: 'cascade' }],
  record: CaseLink.omit({ target_exists: true }),
  hidden: { project_id: z.string() },
  lockFirst: lockCaseOf('case_links'),
  authorize: ofCase,
})
export type LinkRow = z.output<typeof linkKind.row>

const Text = (maxLength: number) => z.string().trim().min(1).max(maxLength)

export const CommentInput = z
  .strictObject({ body: Text(20_000).describe('Text of the comment') })
  .meta({ id: 'CaseCommentInput', example: { body: 'Called the customer back' } })

export const ResolveCaseInput = z
  .strictObject({
    outcome: Text(255).describe('Outcome of the case'),
    note: z.string().max(20_000).nullable().optional().describe('Note on the outcome'),
  })
  .meta({ id: 'CaseResolveInput', example: { outcome: 'refunded' } })

export const CloseInput = z
  .strictObject({ reason: z.string().max(20_000).nullable().optional().describe('Reason for closing the case') })
  .meta({ id: 'CaseCloseInput' })

export const ReasonInput = z
  .strictObject({ reason: Text(20_000).describe('Reason for the change') })
  .meta({ id: 'CaseReasonInput' })

export const MergeInput = z
  .strictObject({ into_case_id: id.describe('ID of the case, in the same project, to merge into') })
  .meta({ id: 'CaseMergeInput' })
