import { AppError, errorBody } from '#core/base/errors.ts'

/** Errors of A2A 1.0, by the reason in their details. */

const FAULTS = {
  PARSE_ERROR: { rpc: -32700, status: 400, grpc: 'INVALID_ARGUMENT' },
  INVALID_REQUEST: { rpc: -32600, status: 400, grpc: 'INVALID_ARGUMENT' },
  METHOD_NOT_FOUND: { rpc: -32601, status: 404, grpc: 'UNIMPLEMENTED' },
  INVALID_PARAMS: { rpc: -32602, status: 400, grpc: 'INVALID_ARGUMENT' },
  INTERNAL_ERROR: { rpc: -32603, status: 500, grpc: 'INTERNAL' },
  TASK_NOT_FOUND: { rpc: -32001, status: 404, grpc: 'NOT_FOUND' },
  TASK_NOT_CANCELABLE: { rpc: -32002, status: 400, grpc: 'FAILED_PRECONDITION' },
  UNSUPPORTED_OPERATION: { rpc: -32004, status: 400, grpc: 'FAILED_PRECONDITION' },
  CONTENT_TYPE_NOT_SUPPORTED: { rpc: -32005, status: 400, grpc: 'INVALID_ARGUMENT' },
  EXTENDED_AGENT_CARD_NOT_CONFIGURED: { rpc: -32007, status: 400, grpc: 'FAILED_PRECONDITION' },
  VERSION_NOT_SUPPORTED: { rpc: -32009, status: 400, grpc: 'FAILED_PRECONDITION' },
} as const
type FaultName = keyof typeof FAULTS

/** A refusal with an error of the protocol; the catalogue has the class of the refusal only. */
export class FaultError extends AppError {
  readonly fault: FaultName
  constructor(fault: FaultName, message: string, meta?: Record<string, unknown>) {
    const { status } = FAULTS[fault]
    super(status === 404 && fault !== 'METHOD_NOT_FOUND' ? 'RESOURCE_NOT_FOUND' : 'REQUEST_REJECTED', {
      status,
      message,
      meta,
    })
    this.fault = fault
  }
}

export function refuse(fault: FaultName, message: string, meta?: Record<string, unknown>): never {
  throw new FaultError(fault, message, meta)
}

/** Server errors without an error of the protocol: authentication, permissions, limits, unavailability. */
const OTHER = -32000

/** Returns the error of the protocol for a refusal; null if its status says all. */
function faultOf(error: AppError): FaultName | null {
  const { code, status } = error
  if (error instanceof FaultError) return error.fault
  if (code === 'MEDIA_NOT_ACCEPTED') return 'CONTENT_TYPE_NOT_SUPPORTED'
  if (status === 404) return 'TASK_NOT_FOUND'
  if (status === 400 || status === 413 || status === 422) return 'INVALID_PARAMS'
  if (status === 409 || status === 410) return 'UNSUPPORTED_OPERATION'
  return status === 500 ? 'INTERNAL_ERROR' : null
}

const DOMAIN = 'a2a-protocol.org'

/** Returns the details of an error: the reason of the protocol, and the error of the platform. */
function detailsOf(error: AppError, fault: FaultName | null, docsBaseUrl: string) {
  const { code, ...rest } = errorBody(error, docsBaseUrl).error
  return [
    {
      '@type': 'type.googleapis.com/google.rpc.ErrorInfo',
      reason: fault ?? code,
      domain: DOMAIN,
      metadata: { code },
    },
    { '@type': 'type.googleapis.com/google.protobuf.Struct', value: { code, ...rest } },
  ]
}

/** Returns the error object of JSON-RPC. */
export function rpcError(error: AppError, docsBaseUrl: string) {
  const fault = faultOf(error)
  return {
    code: fault === null ? OTHER : FAULTS[fault].rpc,
    message: error.message,
    data: detailsOf(error, fault, docsBaseUrl),
  }
}

/** Returns the status of a response of JSON-RPC with an error: 200 for the errors of the protocol. */
export const rpcStatus = (error: AppError): number => {
  const fault = faultOf(error)
  return fault === null || fault === 'INTERNAL_ERROR' ? error.status : 200
}

/** Returns the body of an error of the HTTP+JSON binding. */
export function restError(error: AppError, docsBaseUrl: string) {
  const fault = faultOf(error)
  const status = restStatus(error)
  const details = detailsOf(error, fault, docsBaseUrl)
  return {
    error: {
      code: status,
      status: fault === null ? (STATUS_NAMES[status] ?? 'UNAVAILABLE') : FAULTS[fault].grpc,
      message: error.message,
      details,
    },
  }
}

const STATUS_NAMES: Record<number, string> = {
  401: 'UNAUTHENTICATED',
  403: 'PERMISSION_DENIED',
  429: 'RESOURCE_EXHAUSTED',
}

export const restStatus = (error: AppError): number => {
  const fault = faultOf(error)
  return fault === null ? error.status : FAULTS[fault].status
}
