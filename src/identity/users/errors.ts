import type { Codes, ErrorTable } from '../../core/api/errors.ts'

export const userErrors = {
  BOOTSTRAP_ALREADY_COMPLETED: { status: 409, description: 'A user already exists' },
  LAST_ADMIN_REQUIRED: {
    status: 409,
    description: 'Delete or demotion would leave no admin',
    message: 'No admin would be left',
  },
} as const satisfies ErrorTable

declare module '../../core/api/errors.ts' {
  interface ErrorCodes extends Codes<typeof userErrors> {}
}
