/** Limits of images and PDFs that end users upload and that messages contain. */
export const MAX_PIXELS = 40_000_000
export const MAX_SIDE = 16_384
export const MAX_FRAMES = 200
export const MAX_PDF_PAGES = 200
