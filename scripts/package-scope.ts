/** Scope of the names of the packages; change it before they are published in another one. */
export const PACKAGE_SCOPE = '@muster'
