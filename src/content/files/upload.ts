import type { StagedUpload } from '../storage/backends.ts'

/** Bytes that a request brought, staged. Shown as what they are to whoever compares requests; the rest is not for them. */
export class Upload {
  readonly #staged: StagedUpload
  readonly #fileId: string
  readonly filename: string | null
  readonly type: string | null
  constructor(staged: StagedUpload, fileId: string, named: { filename: string | null; type: string | null }) {
    this.#staged = staged
    this.#fileId = fileId
    this.filename = named.filename
    this.type = named.type
  }
  get staged(): StagedUpload {
    return this.#staged
  }
  /** The id of the file that they become. */
  get fileId(): string {
    return this.#fileId
  }
  toJSON() {
    const { size, sha256 } = this.#staged
    return { size, sha256: sha256.toString('hex'), filename: this.filename, type: this.type }
  }
}
