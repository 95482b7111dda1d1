import type { CodesOf, ErrorTable } from '../../core/api/errors.ts'

export const ingestionErrors = {
  CONVERSION_TIMEOUT: {
    status: 422,
    description: 'A deferred converter never called back',
    hint: 'See why the converter never called back, then repeat with POST /documents/{document_id}/ingest.',
  },
  FILE_ALREADY_INGESTED: {
    status: 409,
    description: 'File already backs a document',
    message: 'The file {file_id} has the document {document_id} already',
    hint: 'Read the file again with POST /documents/{document_id}/ingest; meta.document_id names the document.',
  },
  FILE_PARSE_FAILED: {
    status: 400,
    description: 'File has no extractable text',
    message: 'The file has no extractable text',
    hint: 'A PDF of images needs an ingestion rule with a converter; give a file without bytes its content first.',
  },
  FILE_TOO_LARGE_FOR_SYNC: {
    status: 413,
    description: 'Too large for wait=true; retry without it and poll the document',
    message: 'The file has {size} bytes; one of more than {max_bytes} is not waited for',
    hint: 'Repeat without wait=true, then poll GET /documents/{document_id}/status or follow the event documents.ingested.',
  },
  INGESTION_CALLBACK_CONFLICT: {
    status: 409,
    description: 'Document no longer awaiting this conversion attempt',
    message: 'The document {document_id} waits for this conversion no longer',
    hint: 'Drop the result: the attempt has ended, or has been replaced by another with an address of its own.',
  },
  INGESTION_CALLBACK_INVALID_TOKEN: {
    status: 401,
    description: 'Callback token bad',
    message: 'The callback token is not valid for this document',
    hint: 'Call back the whole address that came with the file, with its query; it is good for one attempt and for a limited time.',
  },
  INGESTION_FAILED: {
    status: 500,
    description: 'Unexpected failure of an ingestion; keeps the thrown message',
    hint: 'The message says which limit or failure; repeat with POST /documents/{document_id}/ingest.',
  },
  INGESTION_TIMEOUT: {
    status: 500,
    description: 'Ingestion stalled or never picked up',
    hint: 'See that workers for ingestion run (muster doctor), then repeat with POST /documents/{document_id}/ingest.',
  },
  PDF_PARSE_FAILED: {
    status: 400,
    description: 'Upload not a valid PDF',
    message: 'The file cannot be read as a PDF',
    hint: 'Send a PDF that is whole and opens without a password.',
  },
  UNSUPPORTED_FILE_TYPE: {
    status: 400,
    description: 'Content type cannot be ingested',
    message: 'Nothing here reads files of the content type {content_type}',
    hint: 'Make an ingestion rule with a converter for the type (POST /ingestion-rules), or convert the file to PDF, text or Markdown.',
  },
} as const satisfies ErrorTable

declare module '../../core/api/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof ingestionErrors> {}
}
