import { z } from 'zod'
import { kind } from '../../core/api/kind.ts'
import { timeInput } from '../../core/api/lists.ts'
import { metadataBag } from '../../core/api/metadata.ts'
import { createBody, patchBody, record } from '../../core/api/record.ts'
import { TagInput } from '../../core/api/tags.ts'
import { sql, voidStatement } from '../../core/db/sql.ts'

/** A case is the lasting record of one subject: who owns it, what was done about it, what proves it. */

export const CASE_STATUSES = ['open', 'in_progress', 'waiting', 'resolved', 'closed'] as const
export type CaseStatus = (typeof CASE_STATUSES)[number]

export const PRIORITIES = ['low', 'normal', 'high', 'urgent'] as const

/** What a case has to work with, as JSON. */
export const FIELDS_KIB = 256
const DEPTH = 32

const id = z.string().min(1).max(255)
const time = z.iso.datetime()

/** Who did something, by the credential. */
export const CasePrincipal = z.object({ kind: z.enum(['user', 'api_key']), id: z.string() })
export type CasePrincipal = z.output<typeof CasePrincipal>

const Subject = z
  .strictObject({
    type: z.string().min(1).max(255).describe('What it is, such as `order`'),
    id: z.string().min(1).max(255).describe('Its id where it lives'),
    label: z.string().max(255).optional().describe('What people call it'),
  })
  .meta({ id: 'CaseSubject' })

const fields = {
  title: z.string().trim().min(1).max(300).describe('What it is about, in a line'),
  description: z.string().max(65_536).nullable().describe('What it is about, at length'),
  priority: z.enum(PRIORITIES).describe('How urgent it is; default normal'),
  subject: Subject.nullable().describe('The thing or person that it is about'),
  actor_id: id.nullable().describe('End user whom it concerns'),
  assignee: z.string().min(1).max(255).nullable().describe('Who has it; a name or id that nothing interprets'),
  playbook_id: id.nullable().describe('Playbook that its executions follow unless they name another'),
  fields: metadataBag(FIELDS_KIB, DEPTH).describe(
    'Data that playbooks read and write; a change is laid over it, key by key',
  ),
  metadata: metadataBag(16, 8).nullable().describe('Data of your own, which nothing reads'),
  due_at: timeInput.nullable().describe('When it should be done; nothing happens then'),
}

const external_id = z.string().min(1).max(255).nullable().describe('Your id of the case, unique in the project')

export const Case = record(
  'Case',
  {
    number: z.int().describe('Number of the case in its project, which people can say'),
    title: fields.title,
    description: fields.description,
    status: z.enum(CASE_STATUSES).describe('Where it stands; moved by executions, resolve, close and reopen'),
    priority: fields.priority,
    subject: fields.subject,
    external_id,
    actor_id: fields.actor_id,
    assignee: fields.assignee,
    playbook_id: fields.playbook_id,
    fields: z.record(z.string(), z.unknown()).describe('Data that playbooks read and write'),
    metadata: z.record(z.string(), z.unknown()).nullable(),
    due_at: time.nullable(),
    outcome: z.string().nullable().describe('What came of it'),
    outcome_note: z.string().nullable().describe('Remark on the outcome'),
    active_execution_id: z.string().nullable().describe('Execution of a playbook that is under way'),
    execution_count: z.int().describe('Executions on the case'),
    evidence_count: z.int().describe('Pieces of evidence, withdrawn ones included'),
    resolved_at: time.nullable().describe('When it was resolved'),
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
    start_execution: z.boolean().describe('Starts an execution of its playbook in the same transaction'),
    input: metadataBag(1024, DEPTH).describe('What the execution is given; with start_execution alone'),
  },
  ['title'],
  { title: 'Order 1042 is late' },
)
export type CaseInput = z.output<typeof CaseInput>

export const CasePatch = patchBody('CasePatch', { ...fields, tags: TagInput.describe('Replaces the tags') })

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
  eventNotes: 'updated: `changed` names the fields. status_changed: `from_status` is the status before.',
})
export type CaseRow = z.output<typeof caseKind.row>

/** Parts of a case are named as the case by policies. */
const ofCase = ({ case_id }: { case_id: string }) => ({ type: 'case', id: case_id })

/** Takes the lock of the case before that of a part of it. */
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
    kind: z.enum(TIMELINE_KINDS).describe('What happened'),
    principal_kind: z
      .enum(PRINCIPAL_KINDS)
      .describe('Who did it: a user, a key, an execution of a playbook, or the decision on an approval'),
    principal_id: z.string().nullable(),
    playbook_execution_id: z.string().nullable(),
    step_key: z.string().nullable(),
    data: z
      .record(z.string(), z.unknown())
      .describe('What changed, from what to what; the text of a comment; the ids of what it is about'),
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

/** What callers may add; the others are written by executions. */
export const GIVEN_EVIDENCE = ['note', 'file', 'link'] as const
const EVIDENCE_KINDS = [...GIVEN_EVIDENCE, 'output', 'decision', 'approval'] as const

const CONTENT_BYTES = 1024 * 1024
const content = z
  .union([z.string(), metadataBag(1024, 64)])
  .refine(value => typeof value !== 'string' || Buffer.byteLength(value) <= CONTENT_BYTES, 'must be at most 1 MiB')

export const Evidence = record(
  'CaseEvidence',
  {
    case_id: z.string(),
    name: z.string(),
    kind: z.enum(EVIDENCE_KINDS).describe('`note`, `file` and `link` are given; the others are what steps came to'),
    content: z
      .union([z.string(), z.record(z.string(), z.unknown())])
      .nullable()
      .describe('Text or object, as it was captured; null once the content of its turn was purged'),
    file_id: z.string().nullable(),
    url: z.string().nullable(),
    sha256: z.string().describe('Of the content, of the bytes of the file when it was added, or of the url'),
    playbook_execution_id: z.string().nullable(),
    step_key: z.string().nullable(),
    captured_by: CasePrincipal.describe('Who captured it'),
    withdrawn_at: z.iso.datetime().nullable().describe('When it was withdrawn; null while it counts'),
    withdrawn_reason: z.string().nullable().describe('Why it was withdrawn'),
  },
  { project: false, updated: false },
)

export const EvidenceInput = z
  .strictObject({
    name: z.string().trim().min(1).max(200).describe('What it is'),
    kind: z.enum(GIVEN_EVIDENCE).describe('`note` has content, `file` a file_id, `link` a url'),
    content: content.optional().describe('Text or object of a note, at most 1 MiB'),
    file_id: id.optional().describe('File of the project'),
    url: z
      .url({ protocol: /^https?$/, error: 'must be an http or https url' })
      .max(2048)
      .optional()
      .describe('Address of a link, http or https'),
  })
  .superRefine((given, context) => {
    const wanted = { note: 'content', file: 'file_id', link: 'url' }[given.kind]
    for (const part of ['content', 'file_id', 'url'] as const)
      if ((given[part] === undefined) === (part === wanted))
        context.addIssue({
          code: 'custom',
          path: [part],
          message: part === wanted ? `is what a ${given.kind} needs` : `is no part of a ${given.kind}`,
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

export const LINK_TYPES = [
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
    target_exists: z.boolean().describe('False once what it names was deleted'),
    created_by: CasePrincipal.nullable(),
  },
  { project: false, updated: false },
)

export const LinkInput = z
  .strictObject({
    type: z.enum(LINK_TYPES).describe('What is linked'),
    target_id: id.describe('Its id; of the same project'),
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

const Text = (most: number) => z.string().trim().min(1).max(most)

export const CommentInput = z
  .strictObject({ body: Text(20_000).describe('What is said') })
  .meta({ id: 'CaseCommentInput', example: { body: 'Called the customer back' } })

export const ResolveCaseInput = z
  .strictObject({
    outcome: Text(255).describe('What came of it'),
    note: z.string().max(20_000).nullable().optional().describe('More about it'),
  })
  .meta({ id: 'CaseResolveInput', example: { outcome: 'refunded' } })

export const CloseInput = z
  .strictObject({ reason: z.string().max(20_000).nullable().optional().describe('Why') })
  .meta({ id: 'CaseCloseInput' })

export const ReasonInput = z.strictObject({ reason: Text(20_000).describe('Why') }).meta({ id: 'CaseReasonInput' })

export const MergeInput = z
  .strictObject({ into_case_id: id.describe('Case of the same project that gets what this one has') })
  .meta({ id: 'CaseMergeInput' })
