import type { CodesOf, ErrorTable } from '../../core/api/errors.ts'

export const fileErrors = {
  FILE_HAS_DEPENDENTS: {
    status: 409,
    description: 'File referenced by records',
    message: 'Other records refer to the file',
    hint: 'meta names what refers to the file, GET /files/{file_id}/dependents lists it; delete that first. A document takes its file with it.',
  },
  FILE_NOT_FOUND: {
    status: 400,
    description: 'Referenced file missing',
    message: 'The file {id} does not exist in the project',
  },
  FILE_STORAGE_MISCONFIGURED: {
    status: 500,
    description: 'Storage backend misconfigured',
    message: 'The file storage of the deployment is misconfigured',
    hint: 'Repeating does not help: the operator corrects the settings FILES_*. muster doctor and the server log say what is wrong.',
  },
  UPLOAD_TOKEN_EXPIRED: {
    status: 410,
    description: 'Upload token expired',
    message: 'The upload token has expired',
    hint: 'Ask for a new one with POST /files/presigned-url.',
  },
  UPLOAD_TOKEN_NOT_FOUND: {
    status: 404,
    description: 'Upload token unknown',
    message: 'There is no such upload token',
    hint: 'Check the address, or ask for a new one with POST /files/presigned-url: whoever asked for this one may have lost the right.',
  },
  UPLOAD_TOKEN_USED: {
    status: 409,
    description: 'Upload token already used',
    message: 'The upload token has been used',
    hint: 'One token is for one upload; ask for a new one with POST /files/presigned-url.',
  },
} as const satisfies ErrorTable

declare module '../../core/api/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof fileErrors> {}
}
