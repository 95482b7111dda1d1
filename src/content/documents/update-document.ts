import { createHash } from 'node:crypto'
import { isDeepStrictEqual } from 'node:util'
import { etagMatches, etagOf } from '#core/api/etag.ts'
import type { Context } from '#core/api/operation.ts'
import type { Tags } from '#core/api/record.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { requireVersion } from '#core/resources/version.ts'
import type { Tx } from '#core/writes/writer.ts'
import { type FileRow, fileKind } from '../files/model.ts'
import { setFileText } from '../files/store.ts'
import { chunkSettings, effectiveSettings } from '../index/chunks/chunk-settings.ts'
import type { PartialSettings } from '../index/chunks/model.ts'
import { removeChunks } from '../index/chunks/store.ts'
import { embedderOf } from '../index/embeddings/embedder.ts'
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

/** Change of a document; absent properties are unchanged. */
export type DocumentChange = {
  title?: string | null
  path?: string | null
  metadata?: Record<string, unknown> | null
  /** Returns the new tags for the stored ones. */
  tags?: (stored: Tags) => Tags
  settings?: PartialSettings
  /** New text. */
  content?: string
  /** Text to append, as an alternative to `content`. */
  append?: string
  /** The version that is being restored; also restores a withdrawn document. */
  restores?: Pick<DocumentVersionRow, 'text_version' | 'pages'>
  expected_version?: number
}

/** State to write, once the chunks are split. */
type ChangePlan = {
  next: DocumentRow
  /** New text; null if it is unchanged. */
  text: StoredText | null
  /** Source of the new chunks; null if the chunks are unchanged. */
  source: SplitSource | null
  /** Identity of the source: equal keys have equal sources. */
  key: string
  /** Whether the change creates a version. */
  changed: boolean
}

/** Attempts to split and embed outside the row lock; after them, the text is split under the lock without vectors. */
const MAX_ATTEMPTS = 3

/** Fields of a version, in addition to the text. */
const VERSIONED_FIELDS = [
  'title',
  'path',
  'metadata',
  'tags',
  'chunk_strategy',
  'chunk_unit',
  'chunk_size',
  'chunk_overlap',
] as const

/** Raises VALIDATION_FAILED for documents that only the platform writes. */
export function refuseReserved(row: Pick<DocumentRow, 'kind' | 'path'>): void {
  if (row.kind === 'message' || (row.path !== null && isReserved(row.path)))
    raiseInvalid({ code: 'RESERVED_PATH', path: '', message: 'the document is reserved for the platform' })
}

/** Raises VALIDATION_FAILED for a withdrawn document. */
export function refuseWithdrawn(row: Pick<DocumentRow, 'status'>): void {
  if (row.status === 'withdrawn')
    raiseInvalid({ code: 'INVALID_STATE', path: '', message: 'the document is withdrawn; restore a version first' })
}

/**
 * Applies a change to a document and returns its row. With an embedding provider, the text is split and embedded
 * between two transactions, from the state that the first one read under the row lock; if the document changes in
 * between, this is repeated. Concurrent changes without a precondition all apply, one after the other, each as a
 * version.
 */
export async function applyDocumentChange(
  context: Pick<Context, 'services' | 'caller' | 'audit' | 'ifMatch' | 'allow' | 'allowTags' | 'record'> & {
    resource: DocumentRow
  },
  change: DocumentChange,
): Promise<DocumentRow> {
  const { audit, resource, services } = context
  const owner = { project_id: resource.project_id, document_id: resource.id }
  const checks = audit.additional_checks.length
  let prepared: { key: string; split: SplitText } | null = null
  for (let attempt = 0; ; attempt++) {
    const outcome: DocumentRow | ChangePlan = await services.write(async tx => {
      // The transaction may be retried: discard the checks of the previous attempt.
      audit.additional_checks.length = checks
      const row = await lockDocument(tx, resource.id)
      if (!row) return raise(documentKind.notFound, { meta: { id: resource.id } })
      refuseReserved(row)
      requireVersion(row, change.expected_version)
      requireEtag(row, context.ifMatch)
      if (!change.restores) refuseWithdrawn(row)
      const plan = await planChange(tx, services, row, change)
      if (plan.next.path !== row.path) context.allow(audit.action, { kind: documentKind, row: plan.next })
      if (change.tags) context.allowTags(plan.next.tags)
      await checkChange(services, tx, row, plan.next, change)
      // Usable only if no concurrent write changed the source.
      let split = plan.source && prepared?.key === plan.key ? prepared.split : null
      if (plan.source && !split) {
        if (attempt < MAX_ATTEMPTS && embedderOf(services).configured) return plan
        split = await splitText(services, plan.source)
      }
      const after = await applyPlan(tx, services, row, plan, {
        split,
        created_by: documentAuthor(context.caller),
        text_version: change.restores?.text_version ?? null,
      })
      audit.detail.changes = changedFields(row, after)
      context.record(tx, 200, { body: documentKind.present(after) })
      return after
    })
    if (!('next' in outcome)) return outcome
    prepared = { key: outcome.key, split: await splitAndEmbed(services, owner, outcome.source as SplitSource) }
  }
}

/** Raises PRECONDITION_FAILED if the record no longer matches the client's If-Match. */
export function requireEtag(row: DocumentRow, ifMatch: string | undefined): void {
  if (ifMatch !== undefined && !etagMatches(ifMatch, etagOf(JSON.stringify(documentKind.present(row)))))
    raise('PRECONDITION_FAILED')
}

/** Returns the state after a change of the locked row. Raises VALIDATION_FAILED. */
async function planChange(db: Tx, services: Services, row: DocumentRow, change: DocumentChange): Promise<ChangePlan> {
  const next = { ...row }
  if (change.title !== undefined) next.title = change.title
  if (change.metadata !== undefined) next.metadata = change.metadata
  if (change.tags) next.tags = change.tags(row.tags)
  if (change.path !== undefined) setPath(next, change.path)
  const settings = effectiveSettings(change.settings, row)
  Object.assign(next, settings)

  const writesText = change.content !== undefined || change.append !== undefined
  if (writesText && !change.restores) requireTextSource(row, change)
  const settingsChanged =
    !isDeepStrictEqual(settings, chunkSettings(row)) ||
    (change.settings !== undefined && row.status !== 'ready') ||
    (settings.chunk_strategy === 'auto' && next.title !== row.title && row.status === 'ready')
  const stored = writesText || settingsChanged ? await findStoredText(db, row) : null
  const content = change.append === undefined ? change.content : `${stored?.content}${change.append}`
  const replaced = content !== undefined && content !== stored?.content
  if (replaced && !change.restores)
    textSize(content, services.config.DOCUMENT_CONTENT_MAX_BYTES, change.append === undefined ? 'content' : 'append')

  const changed = replaced || VERSIONED_FIELDS.some(name => !isDeepStrictEqual(next[name], row[name]))
  const text = replaced ? { content, pages: change.restores?.pages ?? null } : null
  if (text) next.charset = null
  const current = text ?? stored
  const mustSplit = replaced || settingsChanged || (writesText && row.status !== 'ready')
  if (mustSplit && current === null && !change.restores)
    raiseInvalid({ code: 'INVALID_STATE', path: '', message: 'the document has no text yet; ingest it again' })
  return {
    next,
    text,
    source: mustSplit && current !== null ? { text: current, settings, title: next.title } : null,
    key: JSON.stringify([
      change.content === undefined ? row.text_version : null,
      current?.pages,
      settings,
      settings.chunk_strategy === 'auto' ? next.title : null,
    ]),
    changed,
  }
}

/** Sets the path; the filename follows if it was the last segment of the old path. */
function setPath(next: DocumentRow, path: string | null): void {
  if (path !== null && next.path !== null && next.filename === leafOf(next.path)) next.filename = fileNameOf(path)
  next.path = path
}

const isTextSource = (row: DocumentRow): boolean => /^text\//i.test(row.content_type ?? '')

/** Raises VALIDATION_FAILED if the text of the document was extracted from a file, or if there is none to append to. */
function requireTextSource(row: DocumentRow, change: DocumentChange): void {
  const field = change.append === undefined ? 'content' : 'append'
  if (!isTextSource(row))
    raiseInvalid({
      code: 'INVALID_STATE',
      path: field,
      message: 'is extracted from the file; to replace it, delete the document and upload another file',
    })
  if (change.append !== undefined && row.text_version === null)
    raiseInvalid({ code: 'INVALID_STATE', path: field, message: 'cannot be applied: the document has no text yet' })
}

const findStoredText = async (db: Tx, row: DocumentRow): Promise<StoredText | null> =>
  row.text_version === null ? null : findDocumentText(db, row.id)

/** Validates changed metadata, and the metadata of a moved document, by the schema of the new path. */
async function checkChange(
  services: Services,
  tx: Tx,
  row: DocumentRow,
  next: DocumentRow,
  change: DocumentChange,
): Promise<void> {
  const { project_id, path, metadata } = next
  const sent = change.restores ? row.metadata !== null || metadata !== null : change.metadata !== undefined
  const moved = path !== row.path && metadata !== null
  if (path !== null && (sent || moved))
    await checkAgainstSchema(services, tx, { project_id, resource_type: 'document', path, metadata })
}

/** Writes a plan; an unchanged document is not written and emits no event. */
async function applyPlan(
  tx: Tx,
  services: Services,
  row: DocumentRow,
  plan: ChangePlan,
  write: { split: SplitText | null; created_by: DocumentAuthor; text_version: number | null },
): Promise<DocumentRow> {
  const { split, created_by } = write
  const restored = row.status === 'withdrawn'
  if (!plan.changed && !split && !restored) return row
  const next = { ...plan.next }
  if (plan.changed || restored) next.version = row.version + 1
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
    emitFileUpdated(tx, await fileKind.update(tx, row.file_id, { path: next.path, filename: next.filename }))
  if (split) {
    await removeChunks(tx, row.id)
    if (row.status === 'pending' || row.status === 'processing') await endIngestion(tx, row.id)
    Object.assign(next, { status: 'ready', error: null, ...chunkCounts(services, split) })
  } else if (restored) {
    Object.assign(next, {
      status: 'failed',
      error: { code: 'INGESTION_FAILED', message: 'Document was withdrawn before it was ingested; ingest it again' },
    })
  }
  const after = await updateDocument(
    tx,
    next,
    next.version === row.version ? undefined : { created_by },
    split ? splitCtes(services, next, split) : {},
  )
  tx.emit(documentKind, restored ? 'restored' : 'updated', after)
  return after
}

/** Makes a text the content of the document's file. */
async function rewriteFile(tx: Tx, row: DocumentRow, text: string): Promise<FileRow> {
  const file = await fileKind.find(tx, row.file_id, true)
  if (!file) throw new Error(`file ${row.file_id} of document ${row.id} not found`)
  const sha256 = createHash('sha256').update(text).digest()
  const rewritten = await setFileText(tx, file, { size: Buffer.byteLength(text), sha256 })
  emitFileUpdated(tx, rewritten)
  return rewritten
}

const emitFileUpdated = (tx: Tx, file: FileRow): void => tx.emit(fileKind, 'updated', file)

/** Returns the version fields that a change modified, for its audit entry. */
function changedFields(row: DocumentRow, after: DocumentRow): string[] | undefined {
  const names = VERSIONED_FIELDS.filter(name => !isDeepStrictEqual(row[name], after[name]))
  const changes = row.text_version === after.text_version ? names : ['content', ...names]
  return changes.length > 0 ? changes : undefined
}
