/* A static program that asks no library of the system's: connects to an address and port of IPv4. */
#include <arpa/inet.h>
#include <stdlib.h>
#include <sys/socket.h>

int main(int count, char **arguments) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    if (count != 3) return 2;
    address.sin_port = htons((unsigned short)atoi(arguments[2]));
    inet_pton(AF_INET, arguments[1], &address.sin_addr);
    return connect(socket(AF_INET, SOCK_STREAM, 0), (struct sockaddr *)&address, sizeof address) != 0;
}
