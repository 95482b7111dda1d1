import type { CodesOf, ErrorTable } from '#core/base/errors.ts'

export const ingestionErrors = {
  CONVERSION_TIMEOUT: {
    status: 422,
    description: 'Deferred converter did not call back',
    hint: 'Fix the callback of the converter, then retry with POST /documents/{document_id}/ingest.',
  },
  FILE_ALREADY_INGESTED: {
    status: 409,
    description: 'File already has a document',
    message: 'File {file_id} already has document {document_id}',
    hint: 'Ingest the document in meta.document_id again with POST /documents/{document_id}/ingest.',
  },
  FILE_PARSE_FAILED: {
    status: 400,
    description: 'File has no extractable text',
    message: 'The file has no extractable text',
    hint: 'For a scanned PDF, create an ingestion rule with a converter (POST /ingestion-rules); for an empty file, upload its content first.',
  },
  FILE_TOO_LARGE_FOR_SYNC: {
    status: 413,
    description: 'Too large for wait=true; retry without it and poll the document',
    message: 'The file has {size} bytes; with wait=true at most {max_bytes} are allowed',
    hint: 'Retry without wait=true, then poll GET /documents/{document_id}/status or subscribe to the event documents.ingested.',
  },
  INGESTION_CALLBACK_CONFLICT: {
    status: 409,
    description: 'Document no longer awaiting this conversion attempt',
    message: 'Document {document_id} is no longer waiting for this conversion',
    hint: 'Discard the result: the attempt has ended or was replaced.',
  },
  INGESTION_CALLBACK_INVALID_TOKEN: {
    status: 401,
    description: 'Callback token invalid',
    message: 'The callback token is not valid for this document',
    hint: 'Use the complete callback URL that was sent with the file, including the query; it is valid for one attempt and a limited time.',
  },
  INGESTION_FAILED: {
    status: 500,
    description: 'Unexpected failure of an ingestion, with the original message',
    hint: 'Fix the failure or limit in the message, then retry with POST /documents/{document_id}/ingest.',
  },
  INGESTION_TIMEOUT: {
    status: 500,
    description: 'Ingestion stalled or never started',
    hint: 'Check that ingestion workers are running (muster doctor), then retry with POST /documents/{document_id}/ingest.',
  },
  PDF_PARSE_FAILED: {
    status: 400,
    description: 'Upload not a valid PDF',
    message: 'The file cannot be read as a PDF',
    hint: 'Upload a complete PDF without password protection.',
  },
  UNSUPPORTED_FILE_TYPE: {
    status: 400,
    description: 'Content type cannot be ingested',
    message: "Content type '{content_type}' is not supported",
    hint: 'Create an ingestion rule with a converter for the type (POST /ingestion-rules), or convert the file to PDF, text or Markdown.',
  },
} as const satisfies ErrorTable

declare module '#core/base/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof ingestionErrors> {}
}
