import type { StagedUpload } from '../storage/backends.ts'

/** Staged bytes of a request. Serializes to size, hash, name and type, by which idempotency compares requests. */
export class Upload {
  readonly #staged: StagedUpload
  readonly #fileId: string
  readonly filename: string | null
  readonly type: string | null
  constructor(staged: StagedUpload, fileId: string, part: { filename: string | null; type: string | null }) {
    this.#staged = staged
    this.#fileId = fileId
    this.filename = part.filename
    this.type = part.type
  }
  get staged(): StagedUpload {
    return this.#staged
  }
  /** ID of the file to be created from the bytes. */
  get fileId(): string {
    return this.#fileId
  }
  toJSON() {
    const { size, sha256 } = this.#staged
    return { size, sha256: sha256.toString('hex'), filename: this.filename, type: this.type }
  }
}
