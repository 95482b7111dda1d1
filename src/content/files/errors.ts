import type { CodesOf, ErrorTable } from '#core/base/errors.ts'

export const fileErrors = {
  FILE_HAS_DEPENDENTS: {
    status: 409,
    description: 'File referenced by records',
    message: 'The file is referenced by other resources',
    hint: 'Delete the resources listed by GET /files/{file_id}/dependents first; deleting a document also deletes its file.',
  },
  FILE_NOT_FOUND: {
    status: 400,
    description: 'Referenced file missing',
    message: 'File {id} not found in this project',
  },
  FILE_STORAGE_MISCONFIGURED: {
    status: 500,
    description: 'Storage backend misconfigured',
    message: 'The file storage of the deployment is misconfigured',
    hint: 'Have the operator correct the FILES_* settings; muster doctor and the server log show the cause. Retrying does not help.',
  },
  MEDIA_NOT_ACCEPTED: {
    status: 400,
    description:
      'Image or file refused by its type, size, dimensions or content, or not accepted by the model (meta.reason)',
    message: 'The file is not accepted',
    hint: 'Send a PNG, JPEG, WebP or GIF image, a PDF or a text within the limits, or an agent whose model accepts the file; meta.reason names the check.',
  },
  UPLOAD_TOKEN_EXPIRED: {
    status: 410,
    description: 'Upload token expired',
    message: 'The upload token has expired',
    hint: 'Create a new one with POST /files/presigned-url.',
  },
  UPLOAD_TOKEN_NOT_FOUND: {
    status: 404,
    description: 'Upload token unknown',
    message: 'Upload token not found',
    hint: 'Check the URL, or create a new token with POST /files/presigned-url; the issuer of this one may have lost its permission.',
  },
  UPLOAD_TOKEN_USED: {
    status: 409,
    description: 'Upload token already used',
    message: 'The upload token has already been used',
    hint: 'Create a new one with POST /files/presigned-url.',
  },
} as const satisfies ErrorTable

declare module '#core/base/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof fileErrors> {}
}
