import { redactEvents, redactFields } from '#control/events/redact.ts'
import { checkStorage } from '#control/quotas/storage.ts'
import { type EndUserContentEraser, eraseInBatches } from '#control/retention/erasure.ts'
import { type EndUserAccess, endUserView } from '#core/api/end-user.ts'
import { extensionPoint } from '#core/base/declarations.ts'
import type { Services } from '#core/base/services.ts'
import { type Queryable, voidStatement } from '#core/db/sql.ts'
import type { EndUser } from '#core/iam/caller.ts'
import type { Tx } from '#core/writes/writer.ts'
import { filePath, leafOf } from '../paths.ts'
import { storageBackends } from '../storage/backends.ts'
import { IMAGE_TYPES, mediaInput, mediaProblem, PDF, raiseNotAccepted } from './media.ts'
import { cleanName } from './media-notes.ts'
import { pdfProblem } from './media-pages.ts'
import { essenceOf, mediaTypeOf } from './media-type.ts'
import { type FileRow, fileKind } from './model.ts'
import { insertFile } from './store.ts'
import type { Upload } from './upload.ts'

/** Files that end users upload for their chats: stored by their IDs, never ingested. */

const TYPES: readonly string[] = [...IMAGE_TYPES, PDF, 'text/plain', 'text/markdown']

/** Path of an end user's file; names of end users are not part of it. */
export const actorFilePath = (actorId: string, fileId: string): string => filePath(`/.actors/${actorId}`, fileId)

/** Counts the length of an upload, which is not read yet, against the limits of the token. Contributed by the module of actors. */
export const uploadLimits = extensionPoint<(services: Services, endUser: EndUser, bytes: number) => Promise<void>>({
  name: 'upload limits of end users',
  folder: 'content/files',
  description: 'Counts an upload of an end user against the limits of its token',
})

/**
 * Checks an upload of an end user before it is stored, and returns its media type.
 * @throws MEDIA_NOT_ACCEPTED
 */
export async function checkActorUpload(
  services: Services,
  { project, upload }: { project: string; upload: Upload },
  signal: AbortSignal,
): Promise<string> {
  const { staged } = upload
  const filename = actorFileName(upload)
  const type = essenceOf(await mediaTypeOf({ part: upload.type, filename, head: staged.head }))
  if (!TYPES.includes(type))
    return raiseNotAccepted(null, { reason: 'type', message: `Files of type ${type} are not accepted` })
  const pieces = () => stagedPieces(services, upload)
  const problem =
    (await mediaProblem(type, pieces())) ??
    (mediaInput(type) === 'pdf' ? await pdfProblem(services, { project, size: staged.size, pieces }, signal) : null)
  return problem ? raiseNotAccepted(null, problem) : type
}

async function* stagedPieces(services: Services, { staged }: Upload): AsyncGenerator<Uint8Array> {
  const stream = await storageBackends(services).readStaged(staged)
  if (!stream) throw new Error(`staged bytes ${staged.location} are lost`)
  yield* stream as AsyncIterable<Buffer>
}

/** Returns the name of an upload without its directories and hidden characters; its ID if nothing is left. */
const actorFileName = ({ filename, fileId }: Upload): string =>
  cleanName(leafOf((filename ?? '').replaceAll('\\', '/'))) || fileId

/** Creates a file of an end user from a checked upload. @throws QUOTA_STORAGE_EXCEEDED */
export async function createActorFile(
  services: Services,
  tx: Tx,
  { project, actorId, upload, contentType }: { project: string; actorId: string; upload: Upload; contentType: string },
): Promise<FileRow> {
  const { staged, fileId } = upload
  await checkStorage(services, project, staged.size, tx)
  const row = await insertFile(tx, {
    id: fileId,
    project_id: project,
    path: actorFilePath(actorId, fileId),
    filename: actorFileName(upload),
    content_type: contentType,
    size: staged.size,
    sha256: staged.sha256,
    storage: staged.storage,
    location: staged.location,
    metadata: null,
    tags: {},
    actor_id: actorId,
  })
  await storageBackends(services).commit(tx, staged)
  return row
}

const fileView = endUserView(
  ['id', 'filename', 'content_type', 'size', 'created_at'],
  [
    'project_id',
    'prefix',
    'path',
    'has_content',
    'checksum_sha256',
    'metadata',
    'tags',
    'document_id',
    'actor_id',
    'updated_at',
  ],
)

export const uploadAccess: EndUserAccess = { scope: 'files', fields: ['file'], view: fileView }

export const fileAccess = (access: Pick<EndUserAccess, 'bytes'> = {}): EndUserAccess<FileRow> => ({
  scope: 'files',
  owns: ({ actor_id }, endUser) => actor_id === endUser.actor_id,
  view: fileView,
  ...access,
})

/** Moves the files of an end user to another one. By files_actor. */
export const moveActorFiles = (tx: Tx, from: string, to: string): Promise<unknown> =>
  tx.query(voidStatement`update files set actor_id = ${to}, updated_at = now() where actor_id = ${from}`)

/** Files of an end user until a time, unlocked. By files_actor. */
const listActorFiles = (db: Queryable, actorId: string, until: string, limit: number): Promise<readonly FileRow[]> =>
  db.any(fileKind.sql`
    select ${fileKind.columns} from files t
    where t.actor_id = ${actorId} and t.created_at <= ${until}::timestamptz order by t.id limit ${limit}`)

const withoutName = redactFields('filename')

/** Deletes the uploads of an end user. Messages that refer to them show that they are gone. */
export const actorFileContent: EndUserContentEraser = {
  async erase({ endUser, until, read, write }) {
    await eraseInBatches(
      limit => listActorFiles(read, endUser.id, until, limit),
      found =>
        write(async tx => {
          let files = 0
          for (const { id } of found) {
            const row = await fileKind.find(tx, id, true)
            if (!row) continue
            await fileKind.remove?.(tx, { ...row, filename: row.id })
            files += 1
          }
          const ids = found.map(({ id }) => id)
          return { files, events: await redactEvents(tx, [{ resource_type: 'file', ids, without: withoutName }]) }
        }),
    )
    return 'erased'
  },
}
