import { createHash } from 'node:crypto'
import { isDeepStrictEqual } from 'node:util'
import { raise, raiseInvalid } from '../../core/api/errors.ts'
import { etagMatches, etagOf } from '../../core/api/etag.ts'
import type { Context } from '../../core/api/operation.ts'
import type { Tags } from '../../core/api/record.ts'
import { requireVersion } from '../../core/api/versions.ts'
import type { Tx } from '../../core/db/writer.ts'
import type { Services } from '../../core/process/services.ts'
import type { PartialSettings } from '../chunks/model.ts'
import { chunkSettings, effectiveSettings } from '../chunks/settings.ts'
import { removeChunks } from '../chunks/store.ts'
import { embedderOf } from '../embeddings/embedder.ts'
import { type FileRow, fileKind } from '../files/model.ts'
import { setFileText } from '../files/store.ts'
import { isReserved, leafOf } from '../paths.ts'
import { checkAgainstSchema } from '../schemas/check.ts'
import { fileNameOf, textSize } from './create.ts'
import {
  type DocumentAuthor,
  type DocumentRow,
  type DocumentVersionRow,
  documentAuthor,
  documentKind,
  type StoredText,
} from './model.ts'
import {
  chunkCounts,
  type SplitSource,
  type SplitText,
  splitAndEmbed,
  splitCtes,
  splitText,
} from './split-and-embed.ts'
import { endIngestion, findDocumentText, lockDocument, setDocumentText, updateDocument } from './store.ts'

/** What a write asks of a document; what is absent stays. */
export type DocumentChange = {
  title?: string | null
  path?: string | null
  metadata?: Record<string, unknown> | null
  /** The tags that the stored ones become. */
  tags?: (stored: Tags) => Tags
  settings?: PartialSettings
  /** The whole text, or what is added to its end. */
  content?: string
  append?: string
  /** The version whose state the above is; brings a withdrawn document back. */
  restores?: Pick<DocumentVersionRow, 'text_version' | 'pages'>
  expected_version?: number
}

/** What a document becomes, once its chunks are there. */
type Plan = {
  next: DocumentRow
  /** The new text; null when the text stays. */
  text: StoredText | null
  /** What the new chunks are made of; null when the chunks stay. */
  source: SplitSource | null
  /** What the source was made from: the same key is the same source. */
  key: string
  /** Something that a version keeps is different. */
  changed: boolean
}

/** Rounds in which chunks are made outside of the row's lock, before they are made under it without vectors. */
const ROUNDS = 3

/** What a version keeps beside the text. */
const VERSIONED = [
  'title',
  'path',
  'metadata',
  'tags',
  'chunk_strategy',
  'chunk_unit',
  'chunk_size',
  'chunk_overlap',
] as const

/** Raises VALIDATION_FAILED for what only the platform writes. */
export function refuseReserved(row: Pick<DocumentRow, 'kind' | 'path'>): void {
  if (row.kind === 'message' || (row.path !== null && isReserved(row.path)))
    raiseInvalid({ code: 'RESERVED_PATH', path: '', message: 'the document is written by the platform only' })
}

/** Raises VALIDATION_FAILED for a write that has to wait for a restore. */
export function refuseWithdrawn(row: Pick<DocumentRow, 'status'>): void {
  if (row.status === 'withdrawn')
    raiseInvalid({ code: 'INVALID_STATE', path: '', message: 'the document is withdrawn; restore a version first' })
}

/**
 * Applies a write to a document and answers its row. Where a provider gives vectors, they and the chunks of a new text
 * are made between two transactions, from what the first one read under the row's lock; when the document has moved on
 * meanwhile they are made again. Writes without a precondition all apply, one after the other, each with its own version.
 */
export async function applyDocumentChange(
  context: Pick<Context, 'services' | 'caller' | 'audit' | 'ifMatch' | 'allow' | 'allowTags' | 'record'> & {
    resource: DocumentRow
  },
  wanted: DocumentChange,
): Promise<DocumentRow> {
  const { audit, resource, services } = context
  const owner = { project_id: resource.project_id, document_id: resource.id }
  const checks = audit.additional_checks.length
  let made: { key: string; cut: SplitText } | null = null
  for (let round = 0; ; round++) {
    const outcome: DocumentRow | Plan = await services.write(async tx => {
      // A transaction may be run again; what it noted is noted anew.
      audit.additional_checks.length = checks
      const row = await lockDocument(tx, resource.id)
      if (!row) return raise(documentKind.notFound, { meta: { id: resource.id } })
      refuseReserved(row)
      requireVersion(row, wanted.expected_version)
      requireTag(row, context.ifMatch)
      if (!wanted.restores) refuseWithdrawn(row)
      const plan = await planChange(tx, services, row, wanted)
      if (plan.next.path !== row.path) context.allow(audit.action, { kind: documentKind, row: plan.next })
      if (wanted.tags) context.allowTags(plan.next.tags)
      await checkChange(services, tx, row, plan.next, wanted)
      // What was cut may be what another write has stored meanwhile.
      let cut = plan.source && made?.key === plan.key ? made.cut : null
      if (plan.source && !cut) {
        if (round < ROUNDS && embedderOf(services).configured) return plan
        cut = await splitText(services, plan.source)
      }
      const after = await applyPlan(tx, services, row, plan, {
        cut,
        created_by: documentAuthor(context.caller),
        text_version: wanted.restores?.text_version ?? null,
      })
      audit.detail.changes = changedFields(row, after)
      context.record(tx, 200, { body: documentKind.present(after) })
      return after
    })
    if (!('next' in outcome)) return outcome
    made = { key: outcome.key, cut: await splitAndEmbed(services, owner, outcome.source as SplitSource) }
  }
}

/** Raises PRECONDITION_FAILED when the record is no longer the one whose tag the client sent as If-Match. */
export function requireTag(row: DocumentRow, wanted: string | undefined): void {
  if (wanted !== undefined && !etagMatches(wanted, etagOf(JSON.stringify(documentKind.present(row)))))
    raise('PRECONDITION_FAILED')
}

/** What a write makes of the locked row. Raises VALIDATION_FAILED for what the document cannot become. */
async function planChange(db: Tx, services: Services, row: DocumentRow, wanted: DocumentChange): Promise<Plan> {
  const next = { ...row }
  if (wanted.title !== undefined) next.title = wanted.title
  if (wanted.metadata !== undefined) next.metadata = wanted.metadata
  if (wanted.tags) next.tags = wanted.tags(row.tags)
  if (wanted.path !== undefined) move(next, wanted.path)
  const settings = effectiveSettings(wanted.settings, row)
  Object.assign(next, settings)

  const writesText = wanted.content !== undefined || wanted.append !== undefined
  if (writesText && !wanted.restores) requireTextSource(row, wanted)
  const cutAnew =
    !isDeepStrictEqual(settings, chunkSettings(row)) ||
    (wanted.settings !== undefined && row.status !== 'ready') ||
    (settings.chunk_strategy === 'auto' && next.title !== row.title && row.status === 'ready')
  const stored = writesText || cutAnew ? await storedText(db, row) : null
  const content = wanted.append === undefined ? wanted.content : `${stored?.content}${wanted.append}`
  const replaced = content !== undefined && content !== stored?.content
  if (replaced && !wanted.restores)
    textSize(content, services.config.DOCUMENT_CONTENT_MAX_BYTES, wanted.append === undefined ? 'content' : 'append')

  const changed = replaced || VERSIONED.some(name => !isDeepStrictEqual(next[name], row[name]))
  const text = replaced ? { content, pages: wanted.restores?.pages ?? null } : null
  const live = text ?? stored
  const cuts = replaced || cutAnew || (writesText && row.status !== 'ready')
  if (cuts && live === null && !wanted.restores)
    raiseInvalid({ code: 'INVALID_STATE', path: '', message: 'the document has no text to cut yet; ingest it again' })
  return {
    next,
    text,
    source: cuts && live !== null ? { text: live, settings, title: next.title } : null,
    key: JSON.stringify([
      wanted.content === undefined ? row.text_version : null,
      live?.pages,
      settings,
      settings.chunk_strategy === 'auto' ? next.title : null,
    ]),
    changed,
  }
}

/** Moves a document; its name follows where it was the path's last segment. */
function move(next: DocumentRow, path: string | null): void {
  if (path !== null && next.path !== null && next.filename === leafOf(next.path)) next.filename = fileNameOf(path)
  next.path = path
}

const isTextSource = (row: DocumentRow): boolean => /^text\//i.test(row.content_type ?? '')

/** Raises VALIDATION_FAILED for a text that would not be the document's source. */
function requireTextSource(row: DocumentRow, wanted: DocumentChange): void {
  const field = wanted.append === undefined ? 'content' : 'append'
  if (!isTextSource(row))
    raiseInvalid({
      code: 'INVALID_STATE',
      path: field,
      message: 'is extracted from the file; to replace it, delete the document with its file and upload another file',
    })
  if (wanted.append !== undefined && row.text_version === null)
    raiseInvalid({ code: 'INVALID_STATE', path: field, message: 'the document has no text to add to yet' })
}

const storedText = async (db: Tx, row: DocumentRow): Promise<StoredText | null> =>
  row.text_version === null ? null : findDocumentText(db, row.id)

/** Checks what a write changes of metadata or place against the schema of the new place. */
async function checkChange(
  services: Services,
  tx: Tx,
  row: DocumentRow,
  next: DocumentRow,
  wanted: DocumentChange,
): Promise<void> {
  const { project_id, path, metadata } = next
  const sent = wanted.restores ? row.metadata !== null || metadata !== null : wanted.metadata !== undefined
  const moved = path !== row.path && metadata !== null
  if (path !== null && (sent || moved))
    await checkAgainstSchema(services, tx, { project_id, resource_type: 'document', path, metadata })
}

/** Writes what was planned; equal state writes nothing and emits no event. */
async function applyPlan(
  tx: Tx,
  services: Services,
  row: DocumentRow,
  plan: Plan,
  write: { cut: SplitText | null; created_by: DocumentAuthor; text_version: number | null },
): Promise<DocumentRow> {
  const { cut, created_by } = write
  const back = row.status === 'withdrawn'
  if (!plan.changed && !cut && !back) return row
  const next = { ...plan.next }
  if (plan.changed || back) next.version = row.version + 1
  if (plan.text !== null) {
    next.text_version = write.text_version ?? next.version
    next.total_pages = null
    await setDocumentText(tx, row, plan.text, next.text_version)
  }
  if (plan.text !== null && isTextSource(row)) {
    const { content_type, size } = await rewriteFile(tx, row, plan.text.content)
    Object.assign(next, { content_type, size })
  }
  if (next.path !== row.path || next.filename !== row.filename)
    tell(tx, await fileKind.update(tx, row.file_id, { path: next.path, filename: next.filename }))
  if (cut) {
    await removeChunks(tx, row.id)
    if (row.status === 'pending' || row.status === 'processing') await endIngestion(tx, row.id)
    Object.assign(next, { status: 'ready', error: null, ...chunkCounts(services, cut) })
  } else if (back) {
    Object.assign(next, {
      status: 'failed',
      error: { code: 'INGESTION_FAILED', message: 'Withdrawn before its text was there; ingest it again' },
    })
  }
  const after = await updateDocument(
    tx,
    next,
    next.version === row.version ? undefined : { created_by },
    cut ? splitCtes(services, next, cut) : {},
  )
  tx.emit(documentKind, back ? 'restored' : 'updated', after)
  return after
}

/** Makes a text the bytes of the document's file too. */
async function rewriteFile(tx: Tx, row: DocumentRow, text: string): Promise<FileRow> {
  const file = await fileKind.find(tx, row.file_id, true)
  if (!file) throw new Error(`document ${row.id} without its file ${row.file_id}`)
  const sha256 = createHash('sha256').update(text).digest()
  const rewritten = await setFileText(tx, file, { size: Buffer.byteLength(text), sha256 })
  tell(tx, rewritten)
  return rewritten
}

/** The file is a resource of its own: who follows files sees what its document does to it. */
const tell = (tx: Tx, file: FileRow): void => tx.emit(fileKind, 'updated', file)

/** The fields of a version that a write changed, for its audit entry. */
function changedFields(row: DocumentRow, after: DocumentRow): string[] | undefined {
  const names = VERSIONED.filter(name => !isDeepStrictEqual(row[name], after[name]))
  const changes = row.text_version === after.text_version ? names : ['content', ...names]
  return changes.length > 0 ? changes : undefined
}
