import { createHash } from 'node:crypto'
import { fileKind } from '../../content/files/model.ts'
import { raise, raiseInvalid } from '../../core/api/errors.ts'
import { newId } from '../../core/api/ids.ts'
import type { Context } from '../../core/api/operation.ts'
import type { Tx } from '../../core/db/writer.ts'
import { type CasePrincipal, type CaseRow, type EvidenceInput, type EvidenceRow, evidenceKind } from './model.ts'
import { insertEvidence, type NewEvidence } from './store.ts'
import type { TimelineEvent } from './timeline.ts'

const sha256 = (text: string): string => createHash('sha256').update(text).digest('hex')

/** The text whose hash stands for content: itself, or an object as JSON. */
const textOf = (content: string | object): string => (typeof content === 'string' ? content : JSON.stringify(content))

/** Evidence as it is written, with what it is hashed by. */
export type HashedEvidence = Pick<EvidenceRow, 'name' | 'kind'> &
  Partial<
    Pick<EvidenceRow, 'content' | 'file_id' | 'url' | 'sha256' | 'playbook_execution_id' | 'step_key' | 'generation_id'>
  >

/**
 * What a caller gives as evidence. A file is hashed as it is now.
 * @throws FILE_NOT_FOUND for a file that the project does not have or the caller may not read, VALIDATION_FAILED for one
 *   without content
 */
export async function hashInputEvidence(
  { tx, allowed }: Pick<Context, 'tx' | 'allowed'>,
  projectId: string,
  inputs: readonly EvidenceInput[],
): Promise<HashedEvidence[]> {
  const pieces: HashedEvidence[] = []
  for (const { name, kind, content, file_id, url } of inputs) {
    const file = file_id === undefined ? null : await fileKind.reference(tx, file_id, projectId)
    if (file_id !== undefined && !(file && allowed('files:GetFile', { kind: fileKind, row: file })))
      raise('FILE_NOT_FOUND', { meta: { id: file_id } })
    if (file && file.sha256 === null)
      raiseInvalid({ code: 'INVALID_VALUE', path: 'file_id', message: 'names a file that has no content yet' })
    pieces.push({ name, kind, content, file_id, url, sha256: file?.sha256 ?? undefined })
  }
  return pieces
}

/**
 * Adds evidence to a case, whose row the caller holds. Returns the rows, and what the timeline is to say of them.
 */
export async function addEvidence(
  tx: Tx,
  { id: case_id, project_id }: Pick<CaseRow, 'id' | 'project_id'>,
  captured_by: CasePrincipal,
  pieces: readonly HashedEvidence[],
): Promise<{ rows: readonly EvidenceRow[]; happenings: TimelineEvent[] }> {
  if (pieces.length === 0) return { rows: [], happenings: [] }
  const evidence = pieces.map((piece): NewEvidence => {
    const { content = null, file_id = null, url = null } = piece
    const { playbook_execution_id = null, step_key = null, generation_id = null } = piece
    const text = content === null ? null : textOf(content)
    return {
      id: newId(evidenceKind.prefix),
      project_id,
      case_id,
      name: piece.name,
      kind: piece.kind,
      content,
      file_id,
      url,
      sha256: piece.sha256 ?? sha256(text ?? url ?? ''),
      playbook_execution_id,
      step_key,
      generation_id,
      captured_by,
      bytes: text === null ? 0 : Buffer.byteLength(text),
    }
  })
  const rows = await insertEvidence(tx, case_id, evidence)
  const happenings = evidence.map(
    ({ id, name, kind, sha256, playbook_execution_id, step_key }): TimelineEvent => ({
      kind: 'evidence_added',
      data: { evidence_id: id, name, kind, sha256 },
      playbook_execution_id,
      step_key,
    }),
  )
  return { rows, happenings }
}
