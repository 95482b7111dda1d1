/** Saves content as a file of the user. */
export function saveAs(parts: BlobPart[], name: string): void {
  const address = URL.createObjectURL(new Blob(parts, { type: 'application/octet-stream' }))
  const link = document.createElement('a')
  link.href = address
  link.download = name
  link.click()
  URL.revokeObjectURL(address)
}
